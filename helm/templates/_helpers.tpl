{{- define "leasehold.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "leasehold.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leasehold.labels" -}}
{{ include "leasehold.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "leasehold.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "leasehold.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* The token that Prometheus and KEDA send. */}}
{{- define "leasehold.clientToken" -}}
name: {{ .Values.api.readersSecret }}
key: {{ .Values.api.clientKey | default .Values.api.readersKey }}
{{- end }}

{{- /* The settings file: what `config` says, and what only the chart knows. */}}
{{- define "leasehold.settings" -}}
{{- $host := dict "name" "${POD_NAME}" "stop_timeout_s" .Values.stopTimeoutSeconds }}
{{- $readers := printf "/run/secrets/leasehold/%s" .Values.api.readersKey }}
{{- $settings := deepCopy .Values.config }}
{{- if eq (dig "type" "sqlite" ($settings.leases | default dict)) "sqlite" }}
{{- $_ := set $settings "leases" (merge ($settings.leases | default dict) (dict "path" "/var/lib/leasehold/leases.db")) }}
{{- end }}
{{- $_ := set $settings "host" (merge $host ($settings.host | default dict)) }}
{{- $_ := set $settings "api" (dict "host" .Values.api.address "port" .Values.api.port "readers" $readers) }}
{{- if .Values.api.operatorsSecret }}
{{- $_ := set $settings.api "operators" (printf "/run/secrets/leasehold-operators/%s" .Values.api.operatorsKey) }}
{{- end }}
{{- if .Values.sparkConnect }}
{{- $_ := set $settings "spark" (merge (dict "remote" .Values.sparkConnect) (omit ($settings.spark | default dict) "master")) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{- /* What a schema cannot say, or not in words that help. */}}
{{- define "leasehold.refusals" -}}
{{- $v := .Values }}
{{- $leases := dig "type" "sqlite" ($v.config.leases | default dict) }}
{{- $most := ternary $v.replicas $v.autoscaling.max (eq $v.autoscaling.by "none") | int }}
{{- if not $v.config.pipelines }}
{{- fail "config.pipelines is empty: say what is processed, as docs/configuration.md has it" }}
{{- end }}
{{- if not $v.api.readersSecret }}
{{- fail "api.readersSecret is empty: name a Secret with a token, which `kubectl create secret generic leasehold-api --from-literal=readers=$(openssl rand -hex 32)` makes" }}
{{- end }}
{{- $places := dict "config.leases" ($v.config.leases | default dict) }}
{{- range $pipeline := $v.config.pipelines }}
{{- range $side := list "feed" "sink" "dead_letters" }}
{{- $_ := set $places (printf "the %s of pipeline '%s'" $side $pipeline.name) (get $pipeline $side | default dict) }}
{{- end }}
{{- end }}
{{- range $where, $place := $places }}
{{- range $name, $plain := dict "dsn" "://[^/@:]*:[^$@][^@]*@|password\\s*=\\s*[^$\\s]" "url" "://[^/@:]*:[^$@][^@]*@|\\?[^$]*$" }}
{{- if regexMatch $plain (get $place $name | default "" | toString) }}
{{- fail (printf "%s: its %s holds a secret in plain words, and a ConfigMap is no place for one: write ${NAME} there, and let `secrets` name a Secret that has NAME" $where $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- if gt $most 1 }}
{{- if has $leases (list "sqlite" "memory") }}
{{- fail (printf "config.leases are of type %s, which pods cannot share, and there are to be %d: keep leases in cosmos or blob, or set replicas to 1" $leases $most) }}
{{- end }}
{{- range $pipeline := $v.config.pipelines }}
{{- range $side := list "feed" "sink" }}
{{- if eq (dig $side "type" "" $pipeline) "log" }}
{{- fail (printf "pipeline '%s' has a %s of type log, which pods cannot share, and there are to be %d: take eventhubs, or set replicas to 1" $pipeline.name $side $most) }}
{{- end }}
{{- end }}
{{- if eq (dig "dead_letters" "type" "" $pipeline) "log" }}
{{- fail (printf "pipeline '%s' has dead_letters of type log, which pods cannot share, and there are to be %d: take postgres, files in a container or eventhubs, or set replicas to 1" $pipeline.name $most) }}
{{- end }}
{{- end }}
{{- end }}
{{- if gt ($v.autoscaling.min | int) ($v.autoscaling.max | int) }}
{{- fail "autoscaling.min is above autoscaling.max" }}
{{- end }}
{{- if and (eq ($v.autoscaling.min | int) 0) (ne $v.autoscaling.by "cosmos") (ne $v.autoscaling.by "none") }}
{{- fail (printf "autoscaling.min is 0, and autoscaling by %s needs a pod that runs: set it to 1 or more" $v.autoscaling.by) }}
{{- end }}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.ingressFrom) (or $v.monitoring.serviceMonitor (eq $v.autoscaling.by "lag")) }}
{{- fail "networkPolicy.ingressFrom is empty, and Prometheus or KEDA has to ask the API: name their namespaces" }}
{{- end }}
{{- end }}
