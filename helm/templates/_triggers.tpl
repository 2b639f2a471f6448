{{- /* The pipeline that `autoscaling.pipeline` names, as YAML; the only one, if there is no other. */}}
{{- define "leasehold.scaledPipeline" -}}
{{- $name := .Values.autoscaling.pipeline }}
{{- $pipelines := .Values.config.pipelines }}
{{- range $pipelines }}
{{- if or (eq .name $name) (and (not $name) (eq (len $pipelines) 1)) }}
{{- toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The variable in a reference like ${NAME}; empty for any other text. */}}
{{- define "leasehold.variable" -}}
{{- regexFind "^[$][{][A-Za-z_][A-Za-z0-9_]*[}]$" (. | default "") | trimPrefix "${" | trimSuffix "}" }}
{{- end }}

{{- /* KEDA's azure-eventhub. It reads the checkpoint blobs of a feed, and asks the hub where its partitions end. */}}
{{- define "leasehold.eventhubsTrigger" -}}
{{- $pipeline := include "leasehold.scaledPipeline" . | fromYaml }}
{{- $feed := $pipeline.feed | default dict }}
{{- $blobs := $feed.checkpoint_blobs | default dict }}
{{- if or (ne (dig "type" "" $feed) "eventhubs") (not $blobs) }}
{{- fail (printf "autoscaling by eventhubs reads the checkpoint blobs of a feed: name a pipeline whose feed has type eventhubs and checkpoint_blobs (autoscaling.pipeline is '%s')" .Values.autoscaling.pipeline) }}
{{- end }}
consumerGroup: {{ $feed.consumer_group | default "$Default" | quote }}
blobContainer: {{ $blobs.container | quote }}
checkpointStrategy: blobMetadata
unprocessedEventThreshold: {{ .Values.autoscaling.lagPerReplica | quote }}
{{- with $feed.event_hub }}
eventHubName: {{ lower . | quote }}
{{- end }}
{{- $hub := include "leasehold.variable" $feed.connection_string }}
{{- $account := include "leasehold.variable" $blobs.connection_string }}
{{- if and $hub $account }}
connectionFromEnv: {{ $hub }}
storageConnectionFromEnv: {{ $account }}
{{- else if include "leasehold.eventhubsIdentity" . }}
{{- $address := regexFind "^https://[^:/?#]+" $blobs.account_url | trimPrefix "https://" | lower }}
{{- $namespace := lower $feed.namespace }}
{{- $suffix := regexReplaceAll "^[^.]+[.]" $namespace "" }}
{{- $storageSuffix := regexReplaceAll "^[^.]+[.]blob[.]" $address "" }}
eventHubNamespace: {{ regexFind "^[^.]+" $namespace | quote }}
storageAccountName: {{ regexFind "^[^.]+" $address | quote }}
{{- if or (ne $suffix "servicebus.windows.net") (ne $storageSuffix "core.windows.net") }}
cloud: Private
endpointSuffix: {{ $suffix | quote }}
storageEndpointSuffix: {{ $storageSuffix | quote }}
{{- end }}
{{- else }}
{{- fail (printf "KEDA reaches the hub and the checkpoint blobs of pipeline '%s' in one of two ways. Give both a connection_string like ${NAME}. Or give the feed a namespace and the blobs an account_url, both without keys, and set workloadIdentity.clientId" $pipeline.name) }}
{{- end }}
{{- end }}

{{- /* Whether KEDA reaches both accounts by the workload identity. */}}
{{- define "leasehold.eventhubsIdentity" -}}
{{- $feed := (include "leasehold.scaledPipeline" . | fromYaml).feed | default dict }}
{{- $blobs := $feed.checkpoint_blobs | default dict }}
{{- if and .Values.workloadIdentity.clientId $feed.namespace $blobs.account_url (not $blobs.key) }}true{{ end }}
{{- end }}

{{- /* KEDA's postgresql: a query that you give, over the database of a sink or another one. */}}
{{- define "leasehold.postgresTrigger" -}}
{{- $postgres := .Values.autoscaling.postgres }}
{{- $pipeline := include "leasehold.scaledPipeline" . | fromYaml }}
{{- $sink := $pipeline.sink | default dict }}
{{- $dsn := ternary (include "leasehold.variable" $sink.dsn) "" (eq (dig "type" "" $sink) "postgres") }}
{{- if not $postgres.query }}
{{- fail "autoscaling by postgres needs a query that returns how many events wait: set autoscaling.postgres.query" }}
{{- end }}
{{- if not (or $postgres.connectionEnv $dsn) }}
{{- fail "autoscaling by postgres needs a database: set autoscaling.postgres.connectionEnv to the variable with its DSN, or name a pipeline whose sink has type postgres and a dsn like ${NAME} (autoscaling.pipeline)" }}
{{- end }}
connectionFromEnv: {{ $postgres.connectionEnv | default $dsn }}
query: {{ $postgres.query | quote }}
targetQueryValue: {{ .Values.autoscaling.lagPerReplica | quote }}
{{- end }}
