{{- /* Spark elsewhere than inside each pod: on a Connect server, or on executors that each pod drives. */}}

{{- /* The address of the Connect server; nothing without one. */}}
{{- define "leasehold.connect" -}}
{{- if .Values.sparkServer.create }}sc://{{ include "leasehold.spark" . }}:15002{{ else }}{{ .Values.sparkConnect }}{{ end -}}
{{- end }}

{{- /* Not empty if each pod drives executors of its own. */}}
{{- define "leasehold.drives" -}}
{{- if and (not (include "leasehold.connect" .)) (hasPrefix "k8s://" (dig "spark" "master" "" .Values.config)) }}true{{ end -}}
{{- end }}

{{- /* Not empty if this release has executors. */}}
{{- define "leasehold.executors" -}}
{{- if or .Values.sparkServer.create (include "leasehold.drives" .) }}true{{ end -}}
{{- end }}

{{- /* Short enough for the names of Services, which have 63 characters at most. */}}
{{- define "leasehold.spark" -}}
{{ include "leasehold.name" . | trunc 50 | trimSuffix "-" }}-spark
{{- end }}

{{- define "leasehold.serverSelector" -}}
app.kubernetes.io/name: {{ include "leasehold.app" . }}-spark
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leasehold.executorSelector" -}}
app.kubernetes.io/name: {{ include "leasehold.app" . }}-spark-executor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The selector of the pods that drive executors. */}}
{{- define "leasehold.driverSelector" -}}
{{- if .Values.sparkServer.create }}{{ include "leasehold.serverSelector" . }}{{ else }}{{ include "leasehold.selector" . }}{{ end -}}
{{- end }}

{{- /* What Spark's driver has to know about executors. With this, it needs rights only to pods, not to ConfigMaps, Services or claims. */}}
{{- define "leasehold.driverConf" -}}
spark.kubernetes.namespace: {{ .Release.Namespace | quote }}
spark.kubernetes.container.image: {{ .Values.sparkExecutors.image | default .Values.sparkServer.image | quote }}
spark.kubernetes.container.image.pullPolicy: {{ .Values.image.pullPolicy | quote }}
spark.kubernetes.executor.podTemplateFile: /etc/leasehold-spark/executor.yaml
spark.kubernetes.executor.disableConfigMap: "true"
spark.kubernetes.driver.service.deleteOnTermination: "false"
spark.kubernetes.driver.ownPersistentVolumeClaim: "false"
spark.authenticate: "true"
spark.driver.port: "7078"
spark.driver.blockManager.port: "7079"
spark.blockManager.port: "7079"
spark.port.maxRetries: "0"
spark.executor.instances: {{ .Values.sparkExecutors.count | quote }}
spark.executor.cores: {{ .Values.sparkExecutors.cores | quote }}
spark.executor.memory: {{ .Values.sparkExecutors.memory | quote }}
{{- end }}

{{- define "leasehold.hostConf" -}}
{{ include "leasehold.driverConf" . }}
spark.kubernetes.driver.pod.name: ${POD_NAME}
spark.driver.host: ${DRIVER_POD_IP}
{{- end }}

{{- /* Without this interval, Spark counts failed executors from its start, and exits after a few. */}}
{{- define "leasehold.driverTuning" -}}
spark.executor.failuresValidityInterval: 10m
{{- end }}

{{- /* Settings that `config.spark.conf` may override. */}}
{{- define "leasehold.hostTuning" -}}
{{ include "leasehold.driverTuning" . }}
spark.sql.shuffle.partitions: {{ mul .Values.sparkExecutors.count .Values.sparkExecutors.cores | quote }}
{{- end }}

{{- define "leasehold.serverConf" -}}
{{ include "leasehold.driverConf" . }}
spark.master: k8s://https://kubernetes.default.svc
spark.app.name: leasehold
spark.driver.host: {{ printf "%s-driver.%s.svc" (include "leasehold.spark" .) .Release.Namespace }}
spark.driver.bindAddress: 0.0.0.0
spark.driver.memory: {{ .Values.sparkServer.memory | quote }}
spark.connect.grpc.binding.port: "15002"
spark.jars.ivy: /tmp/.ivy2
spark.local.dir: /tmp
spark.ui.enabled: "false"
{{- end }}

{{- /*
Settings that `sparkServer.conf` may override. Like a host's own Spark, they suit small batches. Jobs share the cores, so that jobs of
one host need not wait until those of others end. Without the file, FAIR shares cores only between pools. The server's start does not
wait for executors, which hosts would not see: their jobs wait.
*/}}
{{- define "leasehold.serverTuning" -}}
{{ include "leasehold.driverTuning" . }}
spark.scheduler.mode: FAIR
spark.scheduler.allocation.file: file:///etc/leasehold-spark/pools.xml
spark.scheduler.minRegisteredResourcesRatio: "0"
spark.log.level: WARN
spark.sql.shuffle.partitions: {{ mul .Values.sparkExecutors.count .Values.sparkExecutors.cores | quote }}
spark.sql.adaptive.enabled: "false"
spark.buffer.pageSize: 1m
{{- end }}

{{- /* The server's settings, as a file of Java properties. */}}
{{- define "leasehold.serverProperties" -}}
{{- $conf := merge (include "leasehold.serverConf" . | fromYaml) .Values.sparkServer.conf (include "leasehold.serverTuning" . | fromYaml) }}
{{- range $name, $value := $conf }}
{{ $name }}={{ $value | replace "\\" "\\\\" }}
{{- end }}
{{- end }}

{{- /*
An executor. Spark adds the image, its arguments, cores, memory, more variables, and its owner: the pod that drives it.
Variables of Secrets are in this template and not in Spark's settings, so that Spark never sees their values.
*/}}
{{- define "leasehold.executorPod" -}}
apiVersion: v1
kind: Pod
metadata: {{- include "leasehold.marks" (dict "root" . "labels" (include "leasehold.executorSelector" . | fromYaml)) | nindent 2 }}
spec:
  serviceAccountName: {{ include "leasehold.spark" . }}-executor
  {{- include "leasehold.sparkPod" . | nindent 2 }}
  automountServiceAccountToken: false
  containers:
    - name: executor
      env:
        - {name: HOME, value: /tmp}
        {{- with .Values.sparkExecutors.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.sparkExecutors.secrets }}
      envFrom:
        {{- range . }}
        - secretRef: {name: {{ . | quote }}}
        {{- end }}
      {{- end }}
      securityContext: {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        - {name: spark-local-dir-1, mountPath: /tmp}
        - {name: work, mountPath: /opt/spark/work-dir}
  volumes:
    - name: spark-local-dir-1  # Spark knows by this name that its temporary files go here
      emptyDir: {sizeLimit: {{ .Values.sparkExecutors.tmpSize }}}
    - name: work
      emptyDir: {sizeLimit: 256Mi}
{{- end }}

{{- /* What a pod of Spark's image has in common with other pods, except for its user: that of the image. */}}
{{- define "leasehold.sparkPod" -}}
{{- $security := deepCopy .Values.podSecurityContext }}
{{- range list "runAsUser" "runAsGroup" "fsGroup" }}
{{- if hasKey $security . }}{{ $_ := set $security . 185 }}{{ end }}
{{- end -}}
enableServiceLinks: false  # Spark would take variables like SPARK_PORT for its settings
securityContext: {{- toYaml $security | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Values that contradict each other. */}}
{{- define "leasehold.sparkRefusals" -}}
{{- $v := .Values }}
{{- $master := dig "spark" "master" "" $v.config }}
{{- if and $v.sparkServer.create $v.sparkConnect }}
{{- fail "sparkServer.create is true, and sparkConnect names another server: keep one of them" }}
{{- end }}
{{- if and (include "leasehold.connect" .) (hasPrefix "k8s://" $master) }}
{{- fail (printf "config.spark.master is %s, but %s has transforms run on a Spark Connect server: keep one of them" $master (ternary "sparkServer.create" "sparkConnect" $v.sparkServer.create)) }}
{{- end }}
{{- if $v.sparkServer.create }}
{{- include "leasehold.noSecrets" (dict "where" "sparkServer.conf" "name" "conf" "value" $v.sparkServer.conf) }}
{{- include "leasehold.ownConf" (dict "given" $v.sparkServer.conf "own" (include "leasehold.serverConf" . | fromYaml) "where" "sparkServer.conf") }}
{{- end }}
{{- if include "leasehold.drives" . }}
{{- include "leasehold.ownConf" (dict "given" (dig "spark" "conf" dict $v.config | default dict) "own" (include "leasehold.hostConf" . | fromYaml) "where" "config.spark.conf") }}
{{- if not $v.sparkExecutors.image }}
{{- fail (printf "config.spark.master is %s, but sparkExecutors.image is empty: name an image with the Spark of the hosts, %s for example" $master $v.sparkServer.image) }}
{{- end }}
{{- if not (or $v.serviceAccount.create $v.serviceAccount.name) }}
{{- fail (printf "config.spark.master is %s, so pods need a ServiceAccount that may create pods: set serviceAccount.create, or name one (serviceAccount.name)" $master) }}
{{- end }}
{{- if has ($v.api.port | int) (list 7078 7079) }}
{{- fail (printf "api.port is %d, where Spark's driver listens: choose another port" ($v.api.port | int)) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Fails if a setting of Spark's is given that the chart sets. */}}
{{- define "leasehold.ownConf" -}}
{{- $in := . }}
{{- range $name := keys .own | sortAlpha }}
{{- if hasKey $in.given $name }}
{{- fail (printf "%s sets %s, which the chart sets itself: remove it (sparkExecutors and sparkServer have values for images, cores and memory)" $in.where $name) }}
{{- end }}
{{- end }}
{{- end }}
