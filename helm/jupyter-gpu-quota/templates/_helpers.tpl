{{- define "gpu-quota.fullname" -}}
{{- $name := .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- if contains "gpu-quota" $name }}{{ $name }}{{ else }}{{ $name }}-gpu-quota{{ end -}}
{{- end -}}

{{- define "gpu-quota.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gpu-quota.labels" -}}
{{ include "gpu-quota.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Cluster-scoped names have the namespace in them, so that each namespace may have a release. */}}
{{- define "gpu-quota.clusterName" -}}
{{ .Release.Namespace }}.{{ include "gpu-quota.fullname" . }}
{{- end -}}

{{- define "gpu-quota.claim" -}}
{{ .Values.volume.existingClaim | default (include "gpu-quota.fullname" .) }}
{{- end -}}

{{/* The claim of the volume of the SQLite file; empty: it has none of its own. */}}
{{- define "gpu-quota.databaseClaim" -}}
{{- if not .Values.database.existingSecret -}}
{{ .Values.database.existingClaim | default (ternary (printf "%s-database" (include "gpu-quota.fullname" .)) "" (ne .Values.database.size "")) }}
{{- end -}}
{{- end -}}

{{- define "gpu-quota.agentNamespace" -}}
{{ .Values.agent.namespace | default .Release.Namespace }}
{{- end -}}

{{/* The address of the service for agents. */}}
{{- define "gpu-quota.serviceUrl" -}}
{{- if .Values.memberOf.cluster }}
{{- required "agent.enabled needs memberOf.serviceUrl in a further cluster: the address of the hub's service" .Values.memberOf.serviceUrl }}
{{- else -}}
http://{{ include "gpu-quota.fullname" . }}.{{ .Release.Namespace }}:{{ .Values.service.port }}{{ .Values.hub.baseUrl }}services/gpu-quota
{{- end -}}
{{- end -}}

{{/* The hub's name in the labels of pods, for agents. */}}
{{- define "gpu-quota.hubName" -}}
{{- if .Values.memberOf.cluster }}
{{- required "agent.enabled needs memberOf.hub in a further cluster: settings.hub of the hub's release, local by default" .Values.memberOf.hub }}
{{- else -}}
{{ .Values.settings.hub | default "local" }}
{{- end -}}
{{- end -}}

{{/* The user name of the agents' service account. */}}
{{- define "gpu-quota.agentAccount" -}}
system:serviceaccount:{{ include "gpu-quota.agentNamespace" . }}:{{ include "gpu-quota.fullname" . }}-agent
{{- end -}}

{{/* c.GPUQuota.kubernetes_clusters, as JSON. */}}
{{- define "gpu-quota.clusters" -}}
{{- $found := dict -}}
{{- range .Values.clusters }}
{{- $own := dict
  "config" (printf "/etc/gpu-quota-clusters/%s/kubeconfig" .name)
  "context" (.context | default "")
  "namespace" .namespace
  "state_dir" (printf "/clusters/%s" .name)
-}}
{{- if hasKey $found .name }}{{ fail (printf "clusters: %s occurs twice" .name) }}{{ end -}}
{{- $_ := set $found .name (mergeOverwrite $own (.settings | default dict)) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* c.GPUQuota, as JSON. */}}
{{- define "gpu-quota.settings" -}}
{{- $own := dict
  "state_dir" "/state"
  "run_dir" "/run/gpu-quota"
  "backend" "kubernetes"
  "accounts" true
  "kubernetes_namespace" .Release.Namespace
  "kubernetes_image" .Values.jobs.image
  "kubernetes_path" .Values.jobs.path
  "kubernetes_volume_claim" (include "gpu-quota.claim" .)
  "kubernetes_fractions" .Values.jobs.fractions
  "kubernetes_driver" .Values.jobs.driver
  "kubernetes_device_class" .Values.jobs.deviceClass
  "kubernetes_agent_account" (ternary (include "gpu-quota.agentAccount" .) "" .Values.agent.enabled)
  "kubernetes_pod" .Values.jobs.pod
  "kubernetes_container" .Values.jobs.container
  "kubernetes_clusters" (include "gpu-quota.clusters" . | fromJson)
-}}
{{- if .Values.quotaFile }}{{ $_ := set $own "quota_file" "/etc/gpu-quota/quota.yaml" }}{{ end -}}
{{- if include "gpu-quota.databaseClaim" . }}{{ $_ := set $own "database_url" "sqlite:////database/gpu-quota.sqlite" }}{{ end -}}
{{- range $name := concat (keys $own) (list "quota_file") | uniq | sortAlpha }}
{{- if hasKey $.Values.settings $name }}
{{- fail (printf "settings.%s is set by the chart: use its own values" $name) }}
{{- end }}
{{- end -}}
{{- mergeOverwrite $own .Values.settings | toJson -}}
{{- end -}}

{{/*
A Deployment of the service. Takes root, part (all, api or controllers), replicas, resources.

The pods of "all" have the component api: a change of the database keeps the Deployment, whose selector is immutable.
*/}}
{{- define "gpu-quota.deployment" -}}
{{- $component := ternary "controllers" "api" (eq .part "controllers") -}}
{{- $name := include "gpu-quota.fullname" .root -}}
{{- $values := .root.Values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}{{ if eq .part "controllers" }}-controllers{{ end }}
  labels: {{- include "gpu-quota.labels" .root | nindent 4 }}
spec:
  replicas: {{ .replicas }}
  {{- if not $values.database.existingSecret }}
  strategy: {type: Recreate} # one process writes to an SQLite file
  {{- end }}
  selector:
    matchLabels:
      {{- include "gpu-quota.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ $component }}
  template:
    metadata:
      labels:
        {{- include "gpu-quota.labels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ $component }}
        hub.jupyter.org/network-access-hub: "true"
        {{- with $values.pod.labels }}{{ toYaml . | nindent 8 }}{{ end }}
      annotations:
        checksum/settings: {{ cat (include "gpu-quota.settings" .root) $values.quotaFile | sha256sum }}
        {{- with $values.pod.annotations }}{{ toYaml . | nindent 8 }}{{ end }}
    spec:
      serviceAccountName: {{ $name }}-{{ if eq .part "api" }}api{{ else }}controllers{{ end }}
      securityContext: {{- toYaml $values.pod.securityContext | nindent 8 }}
      enableServiceLinks: false
      {{- with $values.image.pullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.pod.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.pod.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.pod.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: service
          image: "{{ $values.image.name }}{{ with $values.image.tag }}:{{ . }}{{ end }}"
          imagePullPolicy: {{ $values.image.pullPolicy }}
          command: [python, -m, jupyter_gpu_quota, serve{{ if eq .part "api" }}, --only, api{{ else if eq .part "controllers" }}, --only, controller{{ end }}]
          securityContext: {{- toYaml $values.pod.containerSecurityContext | nindent 12 }}
          resources: {{- toYaml .resources | nindent 12 }}
          env:
            - {name: JUPYTERHUB_SERVICE_NAME, value: gpu-quota}
            - {name: JUPYTERHUB_SERVICE_URL, value: "http://0.0.0.0:{{ $values.service.port }}"}
            - {name: JUPYTERHUB_SERVICE_PREFIX, value: {{ printf "%sservices/gpu-quota/" $values.hub.baseUrl | quote }}}
            - {name: JUPYTERHUB_BASE_URL, value: {{ $values.hub.baseUrl | quote }}}
            - {name: JUPYTERHUB_API_URL, value: {{ $values.hub.apiUrl | quote }}}
            - {name: JUPYTERHUB_CLIENT_ID, value: service-gpu-quota}
            - name: JUPYTERHUB_API_TOKEN
              valueFrom: {secretKeyRef: {name: {{ $values.hub.existingSecret | quote }}, key: {{ $values.hub.apiTokenKey | quote }}}}
            {{- with $values.database.existingSecret }}
            - name: JUPYTER_GPU_QUOTA_DATABASE_URL
              valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $values.database.urlKey | quote }}}}
            {{- end }}
            - name: JUPYTER_GPU_QUOTA_SETTINGS
              valueFrom: {configMapKeyRef: {name: {{ $name }}, key: settings.json}}
          {{- if ne .part "controllers" }}
          ports:
            - {name: http, containerPort: {{ $values.service.port }}}
          readinessProbe:
            httpGet: {path: "{{ $values.hub.baseUrl }}services/gpu-quota/api/v1/health", port: http}
            periodSeconds: 5
            timeoutSeconds: 3
          startupProbe: # imports may take a minute on a busy node
            httpGet: {path: "{{ $values.hub.baseUrl }}services/gpu-quota/api/v1/health", port: http}
            periodSeconds: 5
            timeoutSeconds: 3
            failureThreshold: 24
          livenessProbe:
            httpGet: {path: "{{ $values.hub.baseUrl }}services/gpu-quota/api/v1/health", port: http}
            periodSeconds: 20
            timeoutSeconds: 5
          {{- end }}
          {{- if eq .part "controllers" }}
          startupProbe: # imports may take a minute on a busy node
            exec: {command: &heartbeat [sh, -c, 'test -n "$(find /run/gpu-quota/controllers.heartbeat -mmin -2)"']}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 24
          livenessProbe: # the main loop touches this file every second
            exec: {command: *heartbeat}
            periodSeconds: 30
            timeoutSeconds: 5
          {{- end }}
          volumeMounts:
            - {name: state, mountPath: /state}
            {{- if include "gpu-quota.databaseClaim" .root }}
            - {name: database, mountPath: /database}
            {{- end }}
            - {name: run, mountPath: /run/gpu-quota}
            - {name: tmp, mountPath: /tmp}
            - {name: settings, mountPath: /etc/gpu-quota, readOnly: true}
            {{- range $values.clusters }}
            - {name: credentials-{{ .name }}, mountPath: /etc/gpu-quota-clusters/{{ .name }}, readOnly: true}
            - {name: volume-{{ .name }}, mountPath: /clusters/{{ .name }}}
            {{- end }}
            {{- with $values.pod.volumeMounts }}{{ toYaml . | nindent 12 }}{{ end }}
      volumes:
        - name: state
          persistentVolumeClaim: {claimName: {{ include "gpu-quota.claim" .root }}}
        {{- with include "gpu-quota.databaseClaim" .root }}
        - name: database
          persistentVolumeClaim: {claimName: {{ . }}}
        {{- end }}
        - {name: run, emptyDir: {}}
        - {name: tmp, emptyDir: {}}
        - name: settings
          configMap: {name: {{ $name }}}
        {{- $part := .part }}
        {{- range $values.clusters }}
        {{- $key := .kubeconfigKey | default "kubeconfig" }}
        {{- if eq $part "api" }}{{ $key = .apiKubeconfigKey | default $key }}{{ end }}
        - name: credentials-{{ .name }}
          secret:
            secretName: {{ .existingSecret }}
            items: [{key: {{ $key | quote }}, path: kubeconfig}]
        - name: volume-{{ .name }}
          persistentVolumeClaim: {claimName: {{ .existingClaim }}}
        {{- end }}
        {{- with $values.pod.volumes }}{{ toYaml . | nindent 8 }}{{ end }}
{{- end -}}
