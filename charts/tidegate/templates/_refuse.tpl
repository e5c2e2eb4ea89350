{{/*
Rejects values that contradict each other, and reports all contradictions at once. values.schema.json
checks single values.
*/}}
{{- define "tidegate.refuse" -}}
{{- $faults := list -}}
{{- $embedded := eq .Values.mode "embedded" -}}

{{- if not .Values.image.repository -}}
{{- $faults = append $faults "image.repository: this chart names no published image; build one (make release, or docker build), push it to a registry that the cluster can pull from, and give its name here" -}}
{{- end -}}
{{- $controlPlane := include "tidegate.controlPlane" . -}}
{{- if and .Values.envoyGateway.enabled .Values.aiGateway.enabled -}}
{{- $faults = append $faults "envoyGateway.enabled, aiGateway.enabled: enable one of them, and install the chart twice for both" -}}
{{- end -}}
{{- if and $controlPlane (or .Values.policy.files .Values.policy.existingConfigMap) -}}
{{- $faults = append $faults (printf "%s.enabled: its policies come from the control plane; remove policy.files and policy.existingConfigMap" $controlPlane) -}}
{{- end -}}
{{- if and .Values.envoyGateway.enabled .Values.tls.enabled -}}
{{- $faults = append $faults "envoyGateway.enabled: the certificates are those of envoyGateway.existingSecret; remove tls.enabled" -}}
{{- end -}}
{{- if and .Values.envoyGateway.enabled (eq .Values.probes.type "grpc") -}}
{{- $faults = append $faults "probes.type grpc with envoyGateway.enabled: the kubelet's gRPC probes do not support TLS; use http" -}}
{{- end -}}
{{- if and (not $controlPlane) (not .Values.policy.files) (not .Values.policy.existingConfigMap) -}}
{{- $faults = append $faults "policy: give policy.files (name: text) or policy.existingConfigMap, or enable envoyGateway or aiGateway; there is no policy to serve" -}}
{{- end -}}
{{- if and .Values.policy.files .Values.policy.existingConfigMap -}}
{{- $faults = append $faults "policy.files, policy.existingConfigMap: give one of them" -}}
{{- end -}}
{{- $bytes := 0 -}}
{{- range $text := .Values.policy.files -}}
{{- $bytes = add $bytes (len $text) -}}
{{- end -}}
{{- if gt ($bytes | int) 1000000 -}}
{{- $faults = append $faults "policy.files: more than 1,000,000 bytes do not fit into a ConfigMap; split the policy into several installations" -}}
{{- end -}}

{{- if and $embedded (not .Values.embedded.perReplicaLimits) -}}
{{- if gt (.Values.replicaCount | int) 1 -}}
{{- $faults = append $faults "mode embedded with more than one replica: each would have its own counters and admit the whole limit; use mode redis, or set embedded.perReplicaLimits: true" -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- $faults = append $faults "mode embedded with autoscaling: each replica would count for itself and admit the whole limit; use mode redis, or say embedded.perReplicaLimits: true" -}}
{{- end -}}
{{- end -}}

{{- if and (eq .Values.mode "redis") (not .Values.redis.address) -}}
{{- $faults = append $faults "mode redis: give redis.address (host:port)" -}}
{{- end -}}
{{- if and (eq .Values.mode "sentinel") (not .Values.redis.sentinel.addresses) -}}
{{- $faults = append $faults "mode sentinel: give redis.sentinel.addresses (host:port of each sentinel)" -}}
{{- end -}}
{{- if and (eq .Values.mode "cluster") (not .Values.redis.cluster.addresses) -}}
{{- $faults = append $faults "mode cluster: give redis.cluster.addresses (host:port of some nodes)" -}}
{{- end -}}
{{- if and $embedded (or .Values.redis.address .Values.redis.sentinel.addresses .Values.redis.cluster.addresses) -}}
{{- $faults = append $faults "mode embedded with a Redis address: it would not be used; set mode redis, sentinel, or cluster" -}}
{{- end -}}
{{- if and .Values.redis.tls.clientCertificate (or (not .Values.redis.tls.enabled) (not .Values.redis.tls.existingSecret)) -}}
{{- $faults = append $faults "redis.tls.clientCertificate: needs redis.tls.enabled and redis.tls.existingSecret" -}}
{{- end -}}

{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) -}}
{{- $faults = append $faults "tls.enabled: give tls.existingSecret" -}}
{{- end -}}
{{- if and .Values.tls.requireClientCertificate (not .Values.tls.enabled) -}}
{{- $faults = append $faults "tls.requireClientCertificate: needs tls.enabled" -}}
{{- end -}}
{{- if and .Values.tls.clientName (not .Values.tls.requireClientCertificate) -}}
{{- $faults = append $faults "tls.clientName: names are checked in client certificates; set tls.requireClientCertificate" -}}
{{- end -}}
{{- if and .Values.tls.enabled (eq .Values.probes.type "grpc") -}}
{{- $faults = append $faults "probes.type grpc with tls.enabled: the kubelet's gRPC probes do not support TLS; use http" -}}
{{- end -}}

{{- $delay := .Values.drain.delaySeconds | int -}}
{{- $limit := .Values.drain.hardLimitSeconds | int -}}
{{- $grace := .Values.terminationGracePeriodSeconds | int -}}
{{- if le $limit $delay -}}
{{- $faults = append $faults (printf "drain.hardLimitSeconds (%d) must be longer than drain.delaySeconds (%d)" $limit $delay) -}}
{{- end -}}
{{- if le $grace $limit -}}
{{- $faults = append $faults (printf "terminationGracePeriodSeconds (%d) must be longer than drain.hardLimitSeconds (%d): otherwise the kubelet kills the process while it drains" $grace $limit) -}}
{{- end -}}

{{- if .Values.autoscaling.enabled -}}
{{- if gt (.Values.autoscaling.minReplicas | int) (.Values.autoscaling.maxReplicas | int) -}}
{{- $faults = append $faults "autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" .Values.resources) -}}
{{- $faults = append $faults "autoscaling: targetCPUPercent is relative to resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.service.headless (ne .Values.service.type "ClusterIP") -}}
{{- $faults = append $faults "service.headless: only with service.type ClusterIP" -}}
{{- end -}}
{{- if and .Values.service.headless (or (ne (.Values.service.grpcPort | int) 8081) (ne (.Values.service.httpPort | int) 8080)) -}}
{{- $faults = append $faults "service.headless: clients connect to the pods directly, on 8081 and 8080; do not change service.grpcPort and service.httpPort" -}}
{{- end -}}
{{- if eq (.Values.service.grpcPort | int) (.Values.service.httpPort | int) -}}
{{- $faults = append $faults "service.grpcPort, service.httpPort: they must be two ports" -}}
{{- end -}}

{{- if $faults -}}
{{- fail (printf "\n\nThese values contradict each other:\n- %s\n" (join "\n- " $faults)) -}}
{{- end -}}
{{- end -}}
