{{/*
The process's settings, by flag name, as YAML: those that values of the chart make, and `settings`.
*/}}
{{- define "tidegate.settings" -}}
{{- $settings := dict
    "grpc-port" 8081
    "http-port" 8080
    "merge-domain-config" .Values.policy.mergeDomains
    "drain-delay" (printf "%ds" (.Values.drain.delaySeconds | int))
    "hard-limit" (printf "%ds" (.Values.drain.hardLimitSeconds | int))
    "connections" .Values.connections
    "threads" .Values.threads
    "grpc-max-connection-age" .Values.maxConnectionAge
    "log-level" .Values.log.level
    "log-format" .Values.log.format
-}}
{{- if not (include "tidegate.controlPlane" .) -}}
{{- $_ := set $settings "policy" "/etc/tidegate/policy" -}}
{{- end -}}
{{- if .Values.envoyGateway.enabled -}}
{{- $_ := set $settings "grpc-server-use-tls" true -}}
{{- $_ := set $settings "grpc-server-tls-cert" "/certs/tls.crt" -}}
{{- $_ := set $settings "grpc-server-tls-key" "/certs/tls.key" -}}
{{- $_ := set $settings "use-prometheus" true -}}
{{- $_ := set $settings "prometheus-addr" (printf ":%d" (.Values.envoyGateway.metricsPort | int)) -}}
{{- end -}}
{{- with empty .Values.debug.existingSecret | ternary .Values.debug.tokenFile "/etc/tidegate/debug-token/token" -}}
{{- $_ := set $settings "debug-token-file" . -}}
{{- end -}}
{{- if .Values.debug.service.enabled -}}
{{- $_ := set $settings "debug-host" "0.0.0.0" -}}
{{- if .Values.debug.peers -}}
{{- $_ := set $settings "peers" (printf "%s:%s" (include "tidegate.debugHost" .) (include "tidegate.debugPort" .)) -}}
{{- end -}}
{{- end -}}
{{- if .Values.otlp.endpoint -}}
{{- $_ := set $settings "otlp-endpoint" .Values.otlp.endpoint -}}
{{- $_ := set $settings "traces-ratio" .Values.otlp.tracesRatio -}}
{{- end -}}
{{- if eq .Values.mode "embedded" -}}
{{- $_ := set $settings "max-keys" .Values.embedded.maxKeys -}}
{{- else -}}
{{- $redis := .Values.redis -}}
{{- $_ := set $settings "replicas" (include "tidegate.replicasMax" .) -}}
{{- $_ := set $settings "redis-type" (eq .Values.mode "redis" | ternary "single" .Values.mode) -}}
{{- $_ := set $settings "redis-url" (include "tidegate.redisUrl" .) -}}
{{- $_ := set $settings "redis-pool-size" $redis.connections -}}
{{- $_ := set $settings "redis-timeout" $redis.connectTimeout -}}
{{- $_ := set $settings "redis-budget" $redis.budget -}}
{{- $_ := set $settings "require-redis" $redis.requireAtStart -}}
{{- if $redis.keyPrefix -}}
{{- $_ := set $settings "cache-key-prefix" $redis.keyPrefix -}}
{{- end -}}
{{- if $redis.auth.existingSecret -}}
{{- $_ := set $settings "redis-auth-file" "/etc/tidegate/redis-auth/password" -}}
{{- end -}}
{{- if $redis.tls.enabled -}}
{{- $_ := set $settings "redis-tls" true -}}
{{- $_ := set $settings "redis-tls-skip-hostname-verification" $redis.tls.skipHostnameVerification -}}
{{- if $redis.tls.existingSecret -}}
{{- $_ := set $settings "redis-tls-cacert" "/etc/tidegate/redis-tls/ca.crt" -}}
{{- end -}}
{{- if $redis.tls.clientCertificate -}}
{{- $_ := set $settings "redis-tls-client-cert" "/etc/tidegate/redis-tls/tls.crt" -}}
{{- $_ := set $settings "redis-tls-client-key" "/etc/tidegate/redis-tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- if .Values.keySecret.existingSecret -}}
{{- $_ := set $settings "key-secret-file" "/etc/tidegate/key-secret/key" -}}
{{- end -}}
{{- end -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $settings "grpc-server-use-tls" true -}}
{{- $_ := set $settings "grpc-server-tls-cert" "/etc/tidegate/tls/tls.crt" -}}
{{- $_ := set $settings "grpc-server-tls-key" "/etc/tidegate/tls/tls.key" -}}
{{- if .Values.tls.requireClientCertificate -}}
{{- $_ := set $settings "grpc-client-tls-cacert" "/etc/tidegate/tls/ca.crt" -}}
{{- end -}}
{{- if .Values.tls.clientName -}}
{{- $_ := set $settings "grpc-client-tls-san" .Values.tls.clientName -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := .Values.settings -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- range $name, $value := $settings }}
{{ $name }}: {{ (kindIs "float64" $value | ternary ($value | toJson) ($value | toString)) | quote }}
{{- end }}
{{- end -}}

{{/*
The environment of the container. A change of a setting changes the pod's template, so that it is rolled out. Secrets are
not here: they are files. A variable of extraEnv replaces that of the chart, because a list with a name twice breaks
upgrades.
*/}}
{{- define "tidegate.environment" -}}
{{- $variables := list -}}
{{- range $name, $value := include "tidegate.settings" . | fromYaml -}}
{{- $variables = append $variables (dict "name" (printf "TIDEGATE_%s" ($name | replace "-" "_" | upper)) "value" $value) -}}
{{- end -}}
{{- range include "tidegate.otherVariables" . | fromYamlArray -}}
{{- $variables = append $variables . -}}
{{- end -}}
{{- $replaced := list -}}
{{- range .Values.extraEnv -}}
{{- $replaced = append $replaced .name -}}
{{- end -}}
{{- $environment := list -}}
{{- range $variables -}}
{{- if not (has .name $replaced) -}}
{{- $environment = append $environment . -}}
{{- end -}}
{{- end -}}
{{- concat $environment .Values.extraEnv | toYaml -}}
{{- end -}}

{{/* Variables that are not settings by flag name. */}}
{{- define "tidegate.otherVariables" -}}
{{- with include "tidegate.controlPlane" . }}
{{- $gateway := index $.Values . }}
# The names of envoyproxy/ratelimit.
- {name: CONFIG_TYPE, value: GRPC_XDS_SOTW}
- {name: CONFIG_GRPC_XDS_SERVER_URL, value: {{ $gateway.serverUrl | quote }}}
- {name: CONFIG_GRPC_XDS_NODE_ID, value: {{ $gateway.nodeId | quote }}}
{{- end }}
{{- if .Values.envoyGateway.enabled }}
- {name: CONFIG_GRPC_XDS_SERVER_USE_TLS, value: "true"}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_CERT, value: /certs/tls.crt}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_KEY, value: /certs/tls.key}
- {name: CONFIG_GRPC_XDS_SERVER_TLS_CACERT, value: /certs/ca.crt}
# Ready before Envoy Gateway has a policy, as it expects.
- {name: FORCE_START_WITHOUT_INITIAL_CONFIG, value: "true"}
{{- end }}
{{- if and (eq .Values.mode "sentinel") .Values.redis.sentinel.existingSecret }}
# The only secret that the process cannot read from a file.
- name: TIDEGATE_REDIS_SENTINEL_AUTH
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.sentinel.existingSecret }}
      key: {{ .Values.redis.sentinel.secretKey }}
{{- end }}
{{- end -}}
