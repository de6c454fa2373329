{{- define "dynamic-controller.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The arguments of the container. */}}
{{- define "dynamic-controller.args" -}}
- run
{{- if .Values.configuration }}
- --config=/etc/dynamic-controller/configuration/config.yaml
{{- end }}
{{- if .Values.allowPlatformIdentity }}
- --allow-platform-identity
{{- end }}
{{- with .Values.defaultServiceAccount }}
- --default-service-account={{ . }}
{{- end }}
{{- with .Values.namespaces }}
- --namespaces={{ join "," . }}
{{- end }}
{{- if .Values.serverFence.enabled }}
- --leader-elect-fence-on-server
{{- end }}
- --health-probe-bind-address=:8081
{{- if .Values.metrics.enabled }}
- --metrics-bind-address=:8443
{{- if .Values.metrics.tlsSecret }}
- --tls-cert-file=/etc/dynamic-controller/metrics/tls.crt
- --tls-private-key-file=/etc/dynamic-controller/metrics/tls.key
{{- end }}
{{- end }}
{{- if .Values.webhook.enabled }}
- --webhook-bind-address=:9443
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The content of the configuration file. */}}
{{- define "dynamic-controller.configuration" -}}
apiVersion: config.platform.example.com/v1alpha1
kind: DynamicControllerConfiguration
{{ toYaml .Values.configuration }}
{{- end -}}

{{/* Replicas of the same version run on different nodes. */}}
{{- define "dynamic-controller.affinity" -}}
{{- if eq .Values.antiAffinity "preferred" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          {{- include "dynamic-controller.affinityTerm" . | nindent 10 }}
{{- else if eq .Values.antiAffinity "required" -}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - {{- include "dynamic-controller.affinityTerm" . | nindent 8 }}
{{- end -}}
{{- end -}}

{{- define "dynamic-controller.affinityTerm" -}}
topologyKey: kubernetes.io/hostname
labelSelector:
  matchLabels:
    app.kubernetes.io/name: dynamic-controller
matchLabelKeys: [pod-template-hash]
{{- end -}}

{{/* A CEL expression for a field of the sender of a write. It is an empty string if the field is missing. */}}
{{- define "dynamic-controller.fenceField" -}}
{{- $field := printf "fence.dynamic-controller.github.io/%s" . | quote -}}
(has(request.userInfo.extra) && {{ $field }} in request.userInfo.extra && request.userInfo.extra[{{ $field }}].size() == 1 ? request.userInfo.extra[{{ $field }}][0] : '')
{{- end -}}

{{/* Values that contradict each other. */}}
{{- define "dynamic-controller.validate" -}}
{{- range tuple "apiVersion" "kind" -}}
{{- if hasKey $.Values.configuration . -}}
{{- fail (printf "configuration.%s: is set by the chart" .) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- if regexMatch "^--?(leader-elect-resource-name|webhook-name)(=|$)" . -}}
{{- fail (printf "extraArgs: %s: the Roles of the chart permit only the default name" .) -}}
{{- end -}}
{{- end -}}
{{- if .Values.serverFence.enabled -}}
{{- range .Values.extraArgs -}}
{{- if regexMatch "^--?leader-elect(-resource-namespace|-fence-on-server)?(=|$)" . -}}
{{- fail (printf "extraArgs: %s: cannot be combined with serverFence" .) -}}
{{- end -}}
{{- end -}}
{{- $election := .Values.configuration.leaderElection | default dict -}}
{{- range tuple "leaderElect" "resourceName" "resourceNamespace" "fenceOnServer" -}}
{{- if hasKey $election . -}}
{{- fail (printf "configuration.leaderElection.%s: cannot be combined with serverFence" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled: requires metrics.enabled" -}}
{{- end -}}
{{- if and .Values.metrics.prometheusRule.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.prometheusRule.enabled: requires metrics.enabled" -}}
{{- end -}}
{{- if and .Values.metrics.tlsSecret (not .Values.metrics.enabled) -}}
{{- fail "metrics.tlsSecret: requires metrics.enabled" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.tlsSecret) (not .Values.metrics.serviceMonitor.insecureSkipVerify) -}}
{{- fail "metrics.serviceMonitor.enabled: requires metrics.tlsSecret, so that Prometheus can verify the server to which it sends its token; or set metrics.serviceMonitor.insecureSkipVerify" -}}
{{- end -}}
{{- end -}}
