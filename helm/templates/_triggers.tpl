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
{{- $address := lower $blobs.account_url | trimSuffix "/" | trimSuffix ":443" }}
{{- $host := regexFind "^https://[^:/?#$]+[.]blob[.][^:/?#$]+$" $address | trimPrefix "https://" }}
{{- if not $host }}
{{- fail (printf "By identity, KEDA reads blobs at https://ACCOUNT.blob.SUFFIX only. The account_url of the checkpoint_blobs of pipeline '%s' is another address. Write one like https://account.blob.core.windows.net, or give the feed and the blobs a connection_string like ${NAME}. Or set autoscaling.by to lag" $pipeline.name) }}
{{- end }}
{{- /* The account of an endpoint with a DNS zone has two labels: ACCOUNT.z12.blob.storage.azure.net. */}}
{{- $storage := splitn ".blob." 2 $host }}
{{- $namespace := lower $feed.namespace }}
{{- $suffix := regexReplaceAll "^[^.]+[.]" $namespace "" }}
eventHubNamespace: {{ regexFind "^[^.]+" $namespace | quote }}
storageAccountName: {{ $storage._0 | quote }}
{{- if or (ne $suffix "servicebus.windows.net") (ne $storage._1 "core.windows.net") }}
cloud: Private
endpointSuffix: {{ $suffix | quote }}
storageEndpointSuffix: {{ $storage._1 | quote }}
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

{{- /* KEDA's postgresql: a query that you give, over the database of the sink, of the leases, or another one. */}}
{{- define "leasehold.postgresTrigger" -}}
{{- $postgres := .Values.autoscaling.postgres }}
{{- $pipeline := include "leasehold.scaledPipeline" . | fromYaml }}
{{- $sink := $pipeline.sink | default dict }}
{{- $dsn := "" }}
{{- range $place := list $sink (.Values.config.leases | default dict) }}
{{- if and (not $dsn) (eq (dig "type" "" $place) "postgres") }}{{ $dsn = include "leasehold.variable" $place.dsn }}{{ end }}
{{- end }}
{{- if not $postgres.query }}
{{- fail "autoscaling by postgres needs a query that returns how many events wait: set autoscaling.postgres.query" }}
{{- end }}
{{- if not (or $postgres.connectionEnv $dsn) }}
{{- fail "autoscaling by postgres needs a database: set autoscaling.postgres.connectionEnv to the variable with its DSN, or give the sink of the pipeline (autoscaling.pipeline) or the leases the type postgres and a dsn like ${NAME}" }}
{{- end }}
{{- $variable := $postgres.connectionEnv | default $dsn }}
{{- $places := list (list "config.leases" .Values.config.leases) }}
{{- range .Values.config.pipelines }}
{{- $places = append $places (list (printf "the sink of pipeline '%s'" .name) .sink) }}
{{- $places = append $places (list (printf "the dead_letters of pipeline '%s'" .name) .dead_letters) }}
{{- end }}
{{- range $places }}
{{- $place := index . 1 | default dict }}
{{- if and $place.identity (eq (dig "type" "" $place) "postgres") (eq (include "leasehold.variable" $place.dsn) $variable) }}
{{- fail (printf "autoscaling by postgres would give KEDA the DSN in %s, which has no password because %s has `identity`. Create a role with a password for KEDA, and set autoscaling.postgres.connectionEnv to a variable with its DSN. Or set autoscaling.by to lag" $variable (index . 0)) }}
{{- end }}
{{- end }}
connectionFromEnv: {{ $variable }}
query: {{ $postgres.query | quote }}
targetQueryValue: {{ .Values.autoscaling.lagPerReplica | quote }}
{{- end }}
