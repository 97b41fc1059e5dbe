{{/* Labels that select the pods of one component: a dict of root and component. */}}
{{- define "superconductor.selector" -}}
app.kubernetes.io/name: superconductor
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "superconductor.labels" -}}
{{ include "superconductor.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* What every pod has, whatever it runs. */}}
{{- define "superconductor.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* The container: a dict of root, command, and whether it serves its health. */}}
{{- define "superconductor.container" -}}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy | default "IfNotPresent" }}
command: {{ toJson .command }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: configuration
    mountPath: /etc/superconductor/superconductor.conf.d
    readOnly: true
  - name: tmp
    mountPath: /tmp
{{- end }}

{{/* A restart mends no database, so liveness asks only whether the process answers; readiness asks for its health. */}}
{{- define "superconductor.probes" -}}
livenessProbe:
  httpGet:
    path: /alive
    port: monitoring
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /health
    port: monitoring
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/* The files of superconductor.conf.d: a dict of root and secret. The later name replaces values of the earlier. */}}
{{- define "superconductor.configuration" -}}
- name: configuration
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ .root.Release.Name }}-{{ .secret }}
      - configMap:
          name: {{ .root.Release.Name }}-pods
- name: tmp
  emptyDir: {}
{{- end }}

{{/* Pods are replaced when their configuration changes. */}}
{{- define "superconductor.checksum" -}}
checksum/configuration: {{ printf "%s%s%s" (index .root.Values.secrets .secret | default "") (.root.Values.secrets.keystone | default "") (include "superconductor.options" .root) | sha256sum }}
{{- end }}
