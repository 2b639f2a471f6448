{{- /* A text without its references to the environment. (`$$` is a dollar sign.) */}}
{{- define "leasehold.bare" -}}
{{- regexReplaceAll "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}" (replace "$$" "x" .) "" }}
{{- end }}

{{- define "leasehold.secret" -}}
{{- if .isVariable }}
{{- fail (printf "%s: its %s holds a secret in plain text: replace its `value` with `valueFrom: {secretKeyRef: {name: SECRET, key: KEY}}`" .where .name) }}
{{- end }}
{{- if hasPrefix "spark.executorEnv." .name }}
{{- $variable := trimPrefix "spark.executorEnv." .name }}
{{- fail (printf "%s: its %s would store a secret in Spark's configuration: name a Secret that has %s in `sparkExecutors.secrets`, or set %s where the executors of another release start" .where .name $variable $variable) }}
{{- end }}
{{- if regexMatch "^spark\\.kubernetes\\.(driver|executor)\\.(secretKeyRef|secrets)\\." .name }}
{{- fail (printf "%s: its %s does not name a Secret: write SECRET:KEY for `secretKeyRef`, and the path of a directory for `secrets`" .where .name) }}
{{- end }}
{{- if eq .where "sparkServer.conf" }}
{{- fail (printf "%s: its %s holds a secret in plain text, or a ${NAME} that the server does not replace: remove it. Executors get secrets by `sparkExecutors.secrets`" .where .name) }}
{{- end }}
{{- fail (printf "%s: its %s holds a secret in plain text; a ConfigMap must not hold secrets: write ${NAME} there, and list a Secret that has NAME in `secrets`" .where .name) }}
{{- end }}

{{- /*
Fails if a setting holds a secret in plain text, by its name or as part of an address. `isVariable`: it is a variable of a container,
in which Kubernetes replaces $(NAME) and nothing replaces ${NAME}.
*/}}
{{- define "leasehold.noSecrets" -}}
{{- $in := . }}
{{- if kindIs "map" .value }}
{{- range $name, $value := .value }}
{{- if and (eq $in.name "headers") (kindIs "string" $value) }}
{{- if not (or (has (lower $name) (list "accept" "accept-language" "content-type" "user-agent")) (regexMatch "^([A-Za-z]+ )?$" (include "leasehold.bare" $value))) }}
{{- include "leasehold.secret" (dict "where" $in.where "name" (printf "header %s" $name)) }}
{{- end }}
{{- else }}
{{- include "leasehold.noSecrets" (dict "where" $in.where "name" $name "value" $value) }}
{{- end }}
{{- end }}
{{- else if kindIs "slice" .value }}
{{- range .value }}
{{- include "leasehold.noSecrets" (dict "where" $in.where "name" $in.name "value" .) }}
{{- end }}
{{- else if and (kindIs "string" .value) (not (has .name (list "sql" "setup" "merge" "schema" "function"))) }}
{{- $bare := include "leasehold.bare" .value }}
{{- if .isVariable }}
{{- $bare = regexReplaceAll "\\$\\([-._A-Za-z0-9]+\\)" .value "" }}
{{- end }}
{{- $named := "(?i)passw|pwd|secret|token|credential|connection_?string|(account|api|access|shared)[._-]?key|^nkey$" }}
{{- $userinfo := "://[^/?#\\s]*:[^/?#\\s]+@|^https?://[^/?#\\s]+@" }}
{{- $place := "(?i)[._-](file|path|dir|name|type|class)$" }}
{{- $parameter := "(?i)(^|[?&;\\s])([a-z]+[._-])*((ssl)?passw[a-z%0-9]*|pwd|token|secret|signature|sig|code|key|(account|api|access|sharedaccess)key)\\s*=\\s*[^\\s&;=]+=*([\\s&;]|$)" }}
{{- $query := and (eq .name "url") (regexMatch "\\?[^$]*$" .value) }}
{{- /* Spark's own settings for Secrets: a key of a Secret, and the directory where a Secret is mounted. */}}
{{- $key := and (regexMatch "^spark\\.kubernetes\\.(driver|executor)\\.secretKeyRef\\." .name) (regexMatch "^[a-z0-9][-a-z0-9.]*:[-._a-zA-Z0-9]+$" .value) }}
{{- $mount := and (regexMatch "^spark\\.kubernetes\\.(driver|executor)\\.secrets\\." .name) (regexMatch "^/[-./_a-zA-Z0-9]*$" .value) }}
{{- $isPlain := or (regexMatch "(?i)^(true|false)$" .value) (and .isVariable (regexMatch "^[0-9]+(\\.[0-9]+)?$" .value)) }}
{{- $isNamed := and (regexMatch $named .name) (not (or $key $mount $isPlain (regexMatch $place .name))) }}
{{- $isLost := and (ne $bare (replace "$$" "x" .value)) (or (hasPrefix "spark.executorEnv." .name) (eq .where "sparkServer.conf")) }}
{{- if or (and $bare $isNamed) (regexMatch $userinfo $bare) (regexMatch $parameter $bare) $query $isLost }}
{{- include "leasehold.secret" . }}
{{- end }}
{{- end }}
{{- end }}
