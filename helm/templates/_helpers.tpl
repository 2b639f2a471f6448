{{- /* The chart's name in labels and names. */}}
{{- define "leasehold.app" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{- define "leasehold.name" -}}
{{- $app := include "leasehold.app" . }}
{{- $name := contains $app .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $app) }}
{{- .Values.fullnameOverride | default ($name | trunc 63 | trimSuffix "-") }}
{{- end }}

{{- define "leasehold.selector" -}}
app.kubernetes.io/name: {{ include "leasehold.app" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /*
Name, labels and annotations of an object: (dict "root" $ "name" NAME). Optional: `part`, which ends the app's name in its labels,
and labels and annotations of its own.
*/}}
{{- define "leasehold.metadata" -}}
{{- $root := .root }}
{{- $part := .part | default "" }}
{{- $own := dict "app.kubernetes.io/name" (print (include "leasehold.app" $root) $part) "app.kubernetes.io/instance" $root.Release.Name }}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) }}
{{- if not $part }}
{{- $_ := set $own "app.kubernetes.io/version" ($root.Values.image.tag | default $root.Chart.AppVersion | trunc 63) }}
{{- end -}}
name: {{ .name | quote }}
{{ include "leasehold.marks" (dict "root" $root "labels" (merge $own (.labels | default dict)) "annotations" .annotations) }}
{{- end }}

{{- /* Labels and annotations, and those of all objects: (dict "root" $ "labels" LABELS). Optional: `annotations`. */}}
{{- define "leasehold.marks" -}}
labels: {{- merge .labels .root.Values.commonLabels | toYaml | nindent 2 }}
{{- with merge dict (.annotations | default dict) .root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The headless Service of a StatefulSet; short enough for the name of a Service, which has 63 characters at most. */}}
{{- define "leasehold.headless" -}}
{{ include "leasehold.name" . | trunc 50 | trimSuffix "-" }}-hosts
{{- end }}

{{- define "leasehold.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* Not empty if the API listens on loopback, so that only a proxy in the pod reaches it. */}}
{{- define "leasehold.loopback" -}}
{{- if has .Values.api.address (list "127.0.0.1" "::1") }}true{{ end }}
{{- end }}

{{- /* The API's address in its pod. */}}
{{- define "leasehold.local" -}}
http://{{ ternary "[::1]" "127.0.0.1" (eq .Values.api.address "::1") }}:{{ .Values.api.port }}
{{- end }}

{{- /* The API's address in the cluster. */}}
{{- define "leasehold.url" -}}
{{ .Values.api.scheme }}://{{ include "leasehold.name" . }}.{{ .Release.Namespace }}.svc:{{ .Values.api.port }}
{{- end }}

{{- /*
One probe of the host: (dict "root" $ "path" PATH "timing" TIMING). Nothing outside the pod reaches an API on loopback, so in that case
the image's own Python asks it.
*/}}
{{- define "leasehold.probe" -}}
{{- if include "leasehold.loopback" .root -}}
exec:
  command:
    - /opt/leasehold/bin/python
    - -I
    - -c
    - "from urllib.request import urlopen; urlopen('{{ include "leasehold.local" .root }}{{ .path }}', timeout={{ .timing.timeoutSeconds | default 1 }})"
{{- else -}}
httpGet: {path: {{ .path }}, port: api}
{{- end }}
{{- with .timing }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /*
The rule of a NetworkPolicy for DNS: a port of the Service, or 5353. The DNS pods of OpenShift listen there, and its network compares
the port of the pod.
*/}}
{{- define "leasehold.dns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}, {port: 5353, protocol: UDP}, {port: 5353, protocol: TCP}]
{{- end }}

{{- define "leasehold.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "leasehold.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* The token that Prometheus and KEDA send. */}}
{{- define "leasehold.clientToken" -}}
name: {{ .Values.api.readersSecret | quote }}
key: {{ .Values.api.clientKey | default .Values.api.readersKey | quote }}
{{- end }}

{{- /* The settings file: the values of `config`, and those that only the chart knows. */}}
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
{{- if ne .Values.api.tapMask nil }}
{{- $_ := set $settings.api "tap_mask" .Values.api.tapMask }}
{{- end }}
{{- with .Values.api.metricsPartitions }}
{{- $_ := set $settings.api "metrics_partitions" . }}
{{- end }}
{{- if include "leasehold.connect" . }}
{{- $_ := set $settings "spark" (merge (dict "remote" (include "leasehold.connect" .)) (omit ($settings.spark | default dict) "master")) }}
{{- else if include "leasehold.drives" . }}
{{- $conf := merge (include "leasehold.hostConf" . | fromYaml) ($settings.spark.conf | default dict) }}
{{- $_ := set $settings.spark "conf" (merge $conf (include "leasehold.hostTuning" . | fromYaml)) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{- /* What a schema cannot check, or cannot report with a helpful error. */}}
{{- define "leasehold.refusals" -}}
{{- $v := .Values }}
{{- $leases := dig "type" "sqlite" ($v.config.leases | default dict) }}
{{- $most := ternary $v.replicas $v.autoscaling.max (eq $v.autoscaling.by "none") | int }}
{{- if not $v.config.pipelines }}
{{- fail "config.pipelines is empty: add a pipeline, as described in https://leasehold.github.io/leasehold/latest/configuration.html" }}
{{- end }}
{{- if not $v.api.readersSecret }}
{{- fail "api.readersSecret is empty: name a Secret with a token. Create one with `kubectl create secret generic leasehold-api --from-literal=readers=$(openssl rand -hex 32)`" }}
{{- end }}
{{- range $section, $value := omit $v.config "pipelines" }}
{{- include "leasehold.noSecrets" (dict "where" (printf "config.%s" $section) "name" $section "value" $value) }}
{{- end }}
{{- range $pipeline := $v.config.pipelines }}
{{- range $name, $value := $pipeline }}
{{- include "leasehold.noSecrets" (dict "where" (printf "the %s of pipeline '%s'" $name $pipeline.name) "name" $name "value" $value) }}
{{- end }}
{{- end }}
{{- include "leasehold.noSecrets" (dict "where" "the chart's values" "name" "sparkConnect" "value" $v.sparkConnect) }}
{{- include "leasehold.sparkRefusals" . }}
{{- $variables := dict "env" $v.env "sparkExecutors.env" $v.sparkExecutors.env }}
{{- range concat $v.extraContainers $v.extraInitContainers }}
{{- $_ := set $variables (printf "env of the container '%s'" .name) (.env | default list) }}
{{- end }}
{{- range $where, $variables := $variables }}
{{- range $variables }}
{{- include "leasehold.noSecrets" (dict "where" $where "name" .name "value" (.value | default "") "isVariable" true) }}
{{- end }}
{{- end }}
{{- if gt $most 1 }}
{{- if or (has $leases (list "sqlite" "memory")) (contains "SqliteStore" $leases) }}
{{- fail (printf "config.leases are of type %s, which %d pods cannot share: store leases in postgres, cosmos or blob, or set replicas to 1" $leases $most) }}
{{- end }}
{{- range $pipeline := $v.config.pipelines }}
{{- range $side := list "feed" "sink" }}
{{- if eq (dig $side "type" "" $pipeline) "log" }}
{{- fail (printf "pipeline '%s' has a %s of type log, which %d pods cannot share: use eventhubs, or set replicas to 1" $pipeline.name $side $most) }}
{{- end }}
{{- end }}
{{- if not (or $v.dataClaim $v.extraVolumes) }}
{{- range $side := list "feed" "sink" "dead_letters" }}
{{- $place := get $pipeline $side | default dict }}
{{- if and (eq (dig "type" "" $place) "files") $place.path (not $place.container) }}
{{- fail (printf "the %s of pipeline '%s' are files in a directory that %d pods do not share: use a container of Azure Blob Storage, share a directory with dataClaim or extraVolumes, or set replicas to 1" $side $pipeline.name $most) }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq (dig "dead_letters" "type" "" $pipeline) "log" }}
{{- fail (printf "pipeline '%s' has dead_letters of type log, which %d pods cannot share: use postgres, files in a container or eventhubs, or set replicas to 1" $pipeline.name $most) }}
{{- end }}
{{- end }}
{{- end }}
{{- if gt ($v.autoscaling.min | int) ($v.autoscaling.max | int) }}
{{- fail "autoscaling.min is above autoscaling.max" }}
{{- end }}
{{- if and (eq ($v.autoscaling.min | int) 0) (has $v.autoscaling.by (list "lag" "cpu")) }}
{{- fail (printf "autoscaling.min is 0, but autoscaling by %s needs a running pod: set it to 1 or more" $v.autoscaling.by) }}
{{- end }}
{{- include "leasehold.doorRefusals" . }}
{{- if $v.podClaims.create }}
{{- if ne $v.workload "StatefulSet" }}
{{- fail "podClaims.create is true, but a Deployment has no claim for each pod: set workload to StatefulSet, or name a claim that exists (dataClaim)" }}
{{- end }}
{{- if $v.dataClaim }}
{{- fail "podClaims.create is true, and dataClaim names another claim for the same folder: keep one of them" }}
{{- end }}
{{- end }}
{{- $name := include "leasehold.name" . }}
{{- if and (eq $v.workload "StatefulSet") (gt (len $name) 52) }}
{{- fail (printf "the StatefulSet would be named %s, and Kubernetes adds 11 characters for a label of its pods, which has 63 at most: set fullnameOverride to a name of up to 52 characters" $name) }}
{{- end }}
{{- end }}

{{- /* How clients reach the API, and what cannot work. */}}
{{- define "leasehold.doorRefusals" -}}
{{- $v := .Values }}
{{- $clients := list }}
{{- if or $v.monitoring.serviceMonitor $v.monitoring.podMonitor }}{{ $clients = append $clients "Prometheus" }}{{ end }}
{{- if eq $v.autoscaling.by "lag" }}{{ $clients = append $clients "KEDA" }}{{ end }}
{{- if $v.ingress.hosts }}{{ $clients = append $clients "the controller of the Ingress" }}{{ end }}
{{- if $v.httpRoute.parentRefs }}{{ $clients = append $clients "the Gateway" }}{{ end }}
{{- if ne $v.service.type "ClusterIP" }}{{ $clients = append $clients (printf "clients of the Service of type %s" $v.service.type) }}{{ end }}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.ingressFrom) $clients }}
{{- fail (printf "networkPolicy.ingressFrom is empty, but %s must reach the API: name their namespaces (namespaceSelector) or addresses (ipBlock)" (join ", " $clients)) }}
{{- end }}
{{- if and $v.monitoring.serviceMonitor $v.monitoring.podMonitor }}
{{- fail "monitoring.serviceMonitor and monitoring.podMonitor are both true, so Prometheus would scrape each pod twice: keep one of them" }}
{{- end }}
{{- if and (not $v.ingress.hosts) (or $v.ingress.className $v.ingress.annotations $v.ingress.tlsSecret) }}
{{- fail "ingress.hosts is empty, so there is no Ingress for the other values of ingress: add the name of a host, or remove them" }}
{{- end }}
{{- if and (not $v.httpRoute.parentRefs) (or $v.httpRoute.hostnames $v.httpRoute.annotations) }}
{{- fail "httpRoute.parentRefs is empty, so there is no HTTPRoute for the other values of httpRoute: name a Gateway, or remove them" }}
{{- end }}
{{- $doors := list }}
{{- range $container := $v.extraContainers }}
{{- range .ports | default list }}
{{- if eq (.name | default "") "api" }}{{ $doors = append $doors (list $container.name .containerPort) }}{{ end }}
{{- end }}
{{- end }}
{{- if include "leasehold.loopback" . }}
{{- if ne (len $doors) 1 }}
{{- fail (printf "api.address is %s, so only a proxy in the pod reaches the API, but %d containers of extraContainers have a port with the name api: give that name to one, which forwards to %s" $v.api.address (len $doors) (include "leasehold.local" .)) }}
{{- end }}
{{- if eq (index $doors 0 1 | int) ($v.api.port | int) }}
{{- fail (printf "the container '%s' listens on port %d, which is api.port: choose another port for one of them" (index $doors 0 0) ($v.api.port | int)) }}
{{- end }}
{{- else if $doors }}
{{- fail (printf "the container '%s' has a port with the name api, which the host's port already has: set api.address to 127.0.0.1 if it is a proxy for the API, or else name the port differently" (index $doors 0 0)) }}
{{- else if eq $v.api.scheme "https" }}
{{- fail "api.scheme is https, but hosts speak HTTP: set api.address to 127.0.0.1, and add a proxy with TLS to extraContainers" }}
{{- end }}
{{- if and $v.api.caSecret (ne $v.api.scheme "https") }}
{{- fail "api.caSecret is for TLS, but api.scheme is http: set it to https, or remove api.caSecret" }}
{{- end }}
{{- end }}
