{{/*
Values that each are in order and together are not. The render ends with all of them at once; what
one value may be says values.schema.json.
*/}}
{{- define "tidegate.refuse" -}}
{{- $faults := list -}}
{{- $embedded := eq .Values.mode "embedded" -}}

{{- if and (not .Values.policy.files) (not .Values.policy.existingConfigMap) -}}
{{- $faults = append $faults "policy: give policy.files (name: text) or policy.existingConfigMap; without limits there is nothing to decide" -}}
{{- end -}}
{{- if and .Values.policy.files .Values.policy.existingConfigMap -}}
{{- $faults = append $faults "policy.files, policy.existingConfigMap: give one of them" -}}
{{- end -}}
{{- $bytes := 0 -}}
{{- range $text := .Values.policy.files -}}
{{- $bytes = add $bytes (len $text) -}}
{{- end -}}
{{- if gt ($bytes | int) 1000000 -}}
{{- $faults = append $faults "policy.files: more than 1,000,000 bytes do not fit into a ConfigMap; divide the policy over several installations" -}}
{{- end -}}

{{- if and $embedded (not .Values.embedded.perReplicaLimits) -}}
{{- if gt (.Values.replicaCount | int) 1 -}}
{{- $faults = append $faults "mode embedded with more than one replica: each would count for itself and admit the whole limit; use mode redis, or say embedded.perReplicaLimits: true" -}}
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
{{- $faults = append $faults "mode embedded with an address of Redis: it would not be used; set mode redis, sentinel or cluster" -}}
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
{{- $faults = append $faults "tls.clientName: names are checked on certificates; set tls.requireClientCertificate" -}}
{{- end -}}
{{- if and .Values.tls.enabled (eq .Values.probes.type "grpc") -}}
{{- $faults = append $faults "probes.type grpc with tls.enabled: the kubelet's gRPC probes speak no TLS; use http" -}}
{{- end -}}

{{- $delay := .Values.drain.delaySeconds | int -}}
{{- $limit := .Values.drain.hardLimitSeconds | int -}}
{{- $grace := .Values.terminationGracePeriodSeconds | int -}}
{{- if le $limit $delay -}}
{{- $faults = append $faults (printf "drain.hardLimitSeconds (%d) must be longer than drain.delaySeconds (%d)" $limit $delay) -}}
{{- end -}}
{{- if le $grace $limit -}}
{{- $faults = append $faults (printf "terminationGracePeriodSeconds (%d) must be longer than drain.hardLimitSeconds (%d): the kubelet would kill what still drains" $grace $limit) -}}
{{- end -}}

{{- if .Values.autoscaling.enabled -}}
{{- if gt (.Values.autoscaling.minReplicas | int) (.Values.autoscaling.maxReplicas | int) -}}
{{- $faults = append $faults "autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" .Values.resources) -}}
{{- $faults = append $faults "autoscaling: a share of CPU needs resources.requests.cpu to be a share of" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.service.headless (ne .Values.service.type "ClusterIP") -}}
{{- $faults = append $faults "service.headless: only with service.type ClusterIP" -}}
{{- end -}}
{{- if and .Values.service.headless (or (ne (.Values.service.grpcPort | int) 8081) (ne (.Values.service.httpPort | int) 8080)) -}}
{{- $faults = append $faults "service.headless: callers reach the pods themselves, on 8081 and 8080; leave service.grpcPort and service.httpPort there" -}}
{{- end -}}
{{- if eq (.Values.service.grpcPort | int) (.Values.service.httpPort | int) -}}
{{- $faults = append $faults "service.grpcPort, service.httpPort: two ports" -}}
{{- end -}}

{{- if $faults -}}
{{- fail (printf "\n\nThese values do not go together:\n- %s\n" (join "\n- " $faults)) -}}
{{- end -}}
{{- end -}}
