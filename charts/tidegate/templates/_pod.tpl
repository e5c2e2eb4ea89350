{{/* Parts of the Deployment's pod: resources, mounts, volumes, and spreading. */}}

{{/*
The container's resources. Without a memory limit, it is computed from the bounds as values.yaml says.
*/}}
{{- define "tidegate.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if not (dig "limits" "memory" "" $resources) -}}
{{- $keys := eq .Values.mode "embedded" | ternary .Values.embedded.maxKeys 1000000 | int64 -}}
{{- $connections := mul (.Values.connections | int64) 107520 -}}
{{- $counters := mul $keys 96 -}}
{{- $mebibytes := add 432 (div (add $connections $counters 1048575) 1048576) -}}
{{- $limits := merge (dict "memory" (printf "%dMi" $mebibytes)) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Mounted directories: name, path, and source of the volume. */}}
{{- define "tidegate.mounts" -}}
{{- if not (include "tidegate.controlPlane" .) }}
- {name: policy, mountPath: /etc/tidegate/policy, readOnly: true}
{{- end }}
{{- if .Values.envoyGateway.enabled }}
- {name: certs, mountPath: /certs, readOnly: true}
{{- end }}
{{- if and (ne .Values.mode "embedded") .Values.redis.auth.existingSecret }}
- {name: redis-auth, mountPath: /etc/tidegate/redis-auth, readOnly: true}
{{- end }}
{{- if and (ne .Values.mode "embedded") .Values.redis.tls.enabled .Values.redis.tls.existingSecret }}
- {name: redis-tls, mountPath: /etc/tidegate/redis-tls, readOnly: true}
{{- end }}
{{- if and (ne .Values.mode "embedded") .Values.keySecret.existingSecret }}
- {name: key-secret, mountPath: /etc/tidegate/key-secret, readOnly: true}
{{- end }}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/tidegate/tls, readOnly: true}
{{- end }}
{{- if .Values.debug.existingSecret }}
- {name: debug-token, mountPath: /etc/tidegate/debug-token, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tidegate.volumes" -}}
{{- if not (include "tidegate.controlPlane" .) }}
- name: policy
  configMap:
    name: {{ include "tidegate.policyConfigMap" . }}
{{- end }}
{{- if .Values.envoyGateway.enabled }}
- name: certs
  secret:
    secretName: {{ .Values.envoyGateway.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if and (ne .Values.mode "embedded") .Values.redis.auth.existingSecret }}
- name: redis-auth
  secret:
    secretName: {{ .Values.redis.auth.existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .Values.redis.auth.secretKey }}, path: password}]
{{- end }}
{{- if and (ne .Values.mode "embedded") .Values.redis.tls.enabled .Values.redis.tls.existingSecret }}
- name: redis-tls
  secret:
    secretName: {{ .Values.redis.tls.existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.redis.tls.caKey }}, path: ca.crt}
      {{- if .Values.redis.tls.clientCertificate }}
      - {key: {{ .Values.redis.tls.certKey }}, path: tls.crt}
      - {key: {{ .Values.redis.tls.keyKey }}, path: tls.key}
      {{- end }}
{{- end }}
{{- if and (ne .Values.mode "embedded") .Values.keySecret.existingSecret }}
- name: key-secret
  secret:
    secretName: {{ .Values.keySecret.existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .Values.keySecret.secretKey }}, path: key}]
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.tls.certKey }}, path: tls.crt}
      - {key: {{ .Values.tls.keyKey }}, path: tls.key}
      {{- if .Values.tls.requireClientCertificate }}
      - {key: {{ .Values.tls.clientCaKey }}, path: ca.crt}
      {{- end }}
{{- end }}
{{- if .Values.debug.existingSecret }}
- name: debug-token
  secret:
    secretName: {{ .Values.debug.existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .Values.debug.secretKey }}, path: token}]
{{- end }}
{{- end -}}

{{/* The constraints that are given, or those of topologySpread. */}}
{{- define "tidegate.topologySpread" -}}
{{- $selector := dict "matchLabels" (include "tidegate.selector" . | fromYaml) -}}
{{- if .Values.topologySpreadConstraints -}}
{{- $constraints := list -}}
{{- range .Values.topologySpreadConstraints -}}
{{- $constraints = append $constraints (merge dict . (dict "labelSelector" $selector)) -}}
{{- end -}}
{{- toYaml $constraints -}}
{{- else if .Values.topologySpread.enabled -}}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: {{ $.Values.topologySpread.maxSkew }}
  topologyKey: {{ . }}
  whenUnsatisfiable: {{ $.Values.topologySpread.whenUnsatisfiable }}
  labelSelector: {{- toYaml $selector | nindent 4 }}
  # Compare replicas of one version only. Otherwise the old ones distort the spread of a rollout.
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end -}}
{{- end -}}
