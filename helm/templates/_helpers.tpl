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

{{- /* The headless Service of a StatefulSet; short enough for the name of a Service, which has 63 characters at most. */}}
{{- define "leasehold.headless" -}}
{{ include "leasehold.name" . | trunc 50 | trimSuffix "-" }}-hosts
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
{{- if include "leasehold.connect" . }}
{{- $_ := set $settings "spark" (merge (dict "remote" (include "leasehold.connect" .)) (omit ($settings.spark | default dict) "master")) }}
{{- else if include "leasehold.drives" . }}
{{- $conf := merge (include "leasehold.hostConf" . | fromYaml) ($settings.spark.conf | default dict) }}
{{- $_ := set $settings.spark "conf" (merge $conf (include "leasehold.hostTuning" . | fromYaml)) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{- /* What a schema cannot check, or not with a helpful error. */}}
{{- define "leasehold.refusals" -}}
{{- $v := .Values }}
{{- $leases := dig "type" "sqlite" ($v.config.leases | default dict) }}
{{- $most := ternary $v.replicas $v.autoscaling.max (eq $v.autoscaling.by "none") | int }}
{{- if not $v.config.pipelines }}
{{- fail "config.pipelines is empty: add a pipeline, as described in docs/configuration.md" }}
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
{{- range $where, $variables := dict "env" $v.env "sparkExecutors.env" $v.sparkExecutors.env }}
{{- range $variables }}
{{- include "leasehold.noSecrets" (dict "where" $where "name" .name "value" (.value | default "")) }}
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
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.ingressFrom) (or $v.monitoring.serviceMonitor (eq $v.autoscaling.by "lag")) }}
{{- fail "networkPolicy.ingressFrom is empty, but Prometheus or KEDA must reach the API: name their namespaces" }}
{{- end }}
{{- end }}
