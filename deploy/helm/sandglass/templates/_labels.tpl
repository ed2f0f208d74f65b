{{- define "sandglass.labels" -}}
app.kubernetes.io/name: sandglass
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
