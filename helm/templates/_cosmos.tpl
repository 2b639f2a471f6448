{{- /* What KEDA's scaler must know about a pipeline's feed and leases. All of it is in `config`. */}}
{{- define "leasehold.cosmosTrigger" -}}
{{- $name := .Values.autoscaling.pipeline }}
{{- $leases := .Values.config.leases | default dict }}
{{- $feed := dict }}
{{- range .Values.config.pipelines }}
{{- if and (eq .name $name) (eq .feed.type "cosmos") }}{{ $feed = .feed }}{{ end }}
{{- end }}
{{- if or (not $feed) (ne (dig "type" "" $leases) "cosmos") }}
{{- fail (printf "autoscaling by cosmos reads a pipeline's feed and leases in Cosmos DB: name such a pipeline (autoscaling.pipeline is '%s'), with leases of type cosmos" $name) }}
{{- end }}
databaseId: {{ $feed.database }}
containerId: {{ $feed.container }}
leaseDatabaseId: {{ $leases.database }}
leaseContainerId: {{ $leases.container | default "leases" }}
processorName: {{ $feed.processor_name | default $name | quote }}
changeFeedLagThreshold: {{ .Values.autoscaling.lagPerReplica | quote }}
{{- include "leasehold.cosmosAccount" (list $feed "connectionFromEnv" "endpoint" "cosmosDBKeyFromEnv") }}
{{- include "leasehold.cosmosAccount" (list $leases "leaseConnectionFromEnv" "leaseEndpoint" "leaseCosmosDBKeyFromEnv") }}
{{- end }}

{{- /* One account: a section of `config`, and what KEDA calls its connection string, endpoint and key. */}}
{{- define "leasehold.cosmosAccount" -}}
{{- $account := index . 0 }}
{{- with $account.connection_string }}
{{ index $ 1 }}: {{ trimPrefix "${" . | trimSuffix "}" }}
{{- end }}
{{- with $account.endpoint }}
{{ index $ 2 }}: {{ . | quote }}
{{- end }}
{{- with $account.key }}
{{ index $ 3 }}: {{ trimPrefix "${" . | trimSuffix "}" }}
{{- end }}
{{- end }}
