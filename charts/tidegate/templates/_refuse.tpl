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
{{- if not (or $embedded $controlPlane .Values.policy.files .Values.policy.existingConfigMap) -}}
{{- $faults = append $faults "policy: give policy.files (name: text) or policy.existingConfigMap, or enable envoyGateway or aiGateway; only mode embedded serves an example policy" -}}
{{- end -}}
{{- if and .Values.policy.files .Values.policy.existingConfigMap -}}
{{- $faults = append $faults "policy.files, policy.existingConfigMap: set only one of them" -}}
{{- end -}}
{{- $bytes := 0 -}}
{{- range $name, $text := include "tidegate.policyFiles" . | fromYaml -}}
{{- $bytes = add $bytes (len $text) -}}
{{- end -}}
{{- range $name, $policy := .Values.policy.files -}}
{{- if include "tidegate.unquotedValues" $policy -}}
{{- $faults = append $faults (printf "policy.files.%s: quote every `value` in a policy that is a map, because Helm changes how numbers and booleans are written" $name) -}}
{{- end -}}
{{- if include "tidegate.hasClasses" $policy -}}
{{- $faults = append $faults (printf "policy.files.%s: Helm sorts maps, but the order of `classes` is their priority; write this policy as text, with | after its name" $name) -}}
{{- end -}}
{{- end -}}
{{- if gt ($bytes | int) 1000000 -}}
{{- $faults = append $faults "policy.files: more than 1,000,000 bytes do not fit into a ConfigMap; split the policy into several installations" -}}
{{- end -}}

{{- if and $embedded (not .Values.embedded.perReplicaLimits) -}}
{{- if gt (.Values.replicaCount | int) 1 -}}
{{- $faults = append $faults "mode embedded with more than one replica: each would have its own counters and admit the whole limit; use mode redis, or set embedded.perReplicaLimits: true" -}}
{{- end -}}
{{- if or .Values.autoscaling.enabled (kindIs "invalid" .Values.replicaCount) -}}
{{- $faults = append $faults "mode embedded with autoscaling: each replica would count for itself and admit the whole limit; use mode redis, or say embedded.perReplicaLimits: true" -}}
{{- end -}}
{{- end -}}

{{- if and (eq .Values.mode "redis") (not .Values.redis.address) (not .Values.valkey.enabled) -}}
{{- $faults = append $faults "mode redis: give redis.address (host:port), or try it out with valkey.enabled" -}}
{{- end -}}
{{- if .Values.valkey.enabled -}}
{{- if ne .Values.mode "redis" -}}
{{- $faults = append $faults "valkey.enabled: needs mode redis" -}}
{{- end -}}
{{- if .Values.redis.address -}}
{{- $faults = append $faults "valkey.enabled, redis.address: set only one of them" -}}
{{- end -}}
{{- if .Values.redis.tls.enabled -}}
{{- $faults = append $faults "redis.tls.enabled with valkey.enabled: the bundled Valkey has no TLS; use a Redis of your own" -}}
{{- end -}}
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
{{- /* Tidegate reserves a second or, below 10 s, a tenth of the hard limit for its exit. */ -}}
{{- if le (sub (mul $limit 10) (min 10 $limit)) (mul $delay 10) -}}
{{- $faults = append $faults (printf "drain.hardLimitSeconds (%d) must exceed drain.delaySeconds (%d) by more than 1 second or, below 10, by more than a tenth of itself" $limit $delay) -}}
{{- end -}}
{{- if le $grace $limit -}}
{{- $faults = append $faults (printf "terminationGracePeriodSeconds (%d) must be longer than drain.hardLimitSeconds (%d): otherwise the kubelet kills the process while it drains" $grace $limit) -}}
{{- end -}}

{{- if .Values.autoscaling.enabled -}}
{{- if gt (.Values.autoscaling.minReplicas | int) (.Values.autoscaling.maxReplicas | int) -}}
{{- $faults = append $faults "autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if not (or .Values.autoscaling.targetCPUPercent .Values.autoscaling.metrics) -}}
{{- $faults = append $faults "autoscaling.targetCPUPercent 0: give autoscaling.metrics; there is nothing to scale by" -}}
{{- end -}}
{{- if and .Values.autoscaling.targetCPUPercent (not (dig "requests" "cpu" "" .Values.resources)) -}}
{{- $faults = append $faults "autoscaling: targetCPUPercent is relative to resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.service.headless (ne .Values.service.type "ClusterIP") -}}
{{- $faults = append $faults "service.headless: only with service.type ClusterIP" -}}
{{- end -}}
{{- if .Values.service.headless -}}
{{- range list "clusterIP" "trafficDistribution" "internalTrafficPolicy" "externalIPs" -}}
{{- if get $.Values.service . -}}
{{- $faults = append $faults (printf "service.%s: needs service.headless: false, because clients of a headless Service connect to the pods directly" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne .Values.service.type "LoadBalancer" -}}
{{- range list "loadBalancerSourceRanges" "loadBalancerClass" -}}
{{- if get $.Values.service . -}}
{{- $faults = append $faults (printf "service.%s: only with service.type LoadBalancer" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.service.type "ClusterIP" -}}
{{- range list "externalTrafficPolicy" "nodePorts" -}}
{{- if get $.Values.service . -}}
{{- $faults = append $faults (printf "service.%s: only with service.type NodePort or LoadBalancer" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.service.headless (or (ne (.Values.service.grpcPort | int) 8081) (ne (.Values.service.httpPort | int) 8080)) -}}
{{- $faults = append $faults "service.headless: clients connect to the pods directly, on 8081 and 8080; do not change service.grpcPort and service.httpPort" -}}
{{- end -}}
{{- if eq (.Values.service.grpcPort | int) (.Values.service.httpPort | int) -}}
{{- $faults = append $faults "service.grpcPort, service.httpPort: they must be two ports" -}}
{{- end -}}

{{- if and .Values.debug.service.enabled (not (or .Values.debug.existingSecret .Values.debug.tokenFile)) -}}
{{- $faults = append $faults "debug.service.enabled: give debug.existingSecret or debug.tokenFile, so that changes need a token" -}}
{{- end -}}
{{- if and (or .Values.networkPolicy.operatorNamespaces .Values.networkPolicy.operators) (not .Values.debug.service.enabled) -}}
{{- $faults = append $faults "networkPolicy.operatorNamespaces, networkPolicy.operators: the debug port listens on loopback; set debug.service.enabled, or remove them" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- $faults = append $faults "serviceMonitor.enabled, podMonitor.enabled: enable one of them, because together they scrape each pod twice" -}}
{{- end -}}
{{- if and .Values.debug.existingSecret .Values.debug.tokenFile -}}
{{- $faults = append $faults "debug.existingSecret, debug.tokenFile: set only one of them" -}}
{{- end -}}

{{- range $path, $own := include "tidegate.otherNames" . | fromYaml -}}
{{- $parts := splitList "." $path -}}
{{- $parent := $.Values -}}
{{- if gt (len $parts) 1 -}}
{{- $parent = get $.Values (first $parts) -}}
{{- end -}}
{{- if hasKey $parent (last $parts) -}}
{{- $faults = append $faults (printf "%s: this chart has no such value; use %s" $path $own) -}}
{{- end -}}
{{- end -}}

{{- $known := .Files.Lines "files/settings.txt" -}}
{{- $owned := include "tidegate.ownedSettings" . | fromYaml -}}
{{- range $name, $value := .Values.settings -}}
{{- if hasKey $owned $name -}}
{{- $faults = append $faults (printf "settings.%s: use %s instead" $name (get $owned $name)) -}}
{{- else if not (has $name $known) -}}
{{- $nearest := include "tidegate.nearest" (dict "name" $name "known" $known) -}}
{{- $faults = append $faults (printf "settings.%s: there is no such setting; %s" $name (empty $nearest | ternary "`tidegate serve --help` lists them" (printf "did you mean %s?" $nearest))) -}}
{{- end -}}
{{- end -}}

{{- if $faults -}}
{{- fail (printf "\n\nThese values are wrong or contradict each other:\n- %s\n" (join "\n- " $faults)) -}}
{{- end -}}
{{- end -}}

{{/* Not empty if a policy that is a map has a `value` that is no text, or, in the second, several `classes`. */}}
{{- define "tidegate.unquotedValues" -}}
{{- if kindIs "map" . -}}
{{- range $key, $part := . -}}
{{- if and (eq $key "value") (not (or (kindIs "string" $part) (kindIs "invalid" $part))) -}}found{{- end -}}
{{- include "tidegate.unquotedValues" $part -}}
{{- end -}}
{{- else if kindIs "slice" . -}}
{{- range . -}}{{- include "tidegate.unquotedValues" . -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.hasClasses" -}}
{{- if kindIs "map" . -}}
{{- range $key, $part := . -}}
{{- if and (eq $key "classes") (kindIs "map" $part) (gt (len $part) 1) -}}found{{- end -}}
{{- include "tidegate.hasClasses" $part -}}
{{- end -}}
{{- else if kindIs "slice" . -}}
{{- range . -}}{{- include "tidegate.hasClasses" . -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Settings that other values of the chart set: the flag's name and the value. */}}
{{- define "tidegate.ownedSettings" -}}
policy: policy.files
merge-domain-config: policy.mergeDomains
grpc-host: service
grpc-port: service.grpcPort
grpc-uds: service
http-host: service
http-port: service.httpPort
debug-token-file: debug.existingSecret or debug.tokenFile
debug-host: debug.service.enabled
peers: debug.peers
connections: connections
threads: threads
grpc-max-connection-age: maxConnectionAge
drain-delay: drain.delaySeconds
hard-limit: drain.hardLimitSeconds
log-level: log.level
log-format: log.format
max-keys: embedded.maxKeys
replicas: replicaCount or autoscaling.maxReplicas
require-redis: redis.requireAtStart
redis-budget: redis.budget
cache-key-prefix: redis.keyPrefix
key-secret: keySecret.existingSecret
key-secret-file: keySecret.existingSecret
otlp-endpoint: otlp.endpoint
traces-ratio: otlp.tracesRatio
redis-url: redis.address, redis.sentinel, or redis.cluster
redis-type: mode
redis-auth: redis.auth.existingSecret
redis-auth-file: redis.auth.existingSecret
redis-sentinel-auth: redis.sentinel.existingSecret
redis-tls: redis.tls.enabled
redis-tls-cacert: redis.tls.existingSecret
redis-tls-client-cert: redis.tls.clientCertificate
redis-tls-client-key: redis.tls.clientCertificate
redis-tls-skip-hostname-verification: redis.tls.skipHostnameVerification
redis-pool-size: redis.connections
redis-timeout: redis.connectTimeout
grpc-server-use-tls: tls.enabled
grpc-server-tls-cert: tls.existingSecret
grpc-server-tls-key: tls.existingSecret
grpc-client-tls-cacert: tls.requireClientCertificate
grpc-client-tls-san: tls.clientName
{{- if .Values.envoyGateway.enabled }}
use-prometheus: envoyGateway.metricsPort
prometheus-addr: envoyGateway.metricsPort
{{- end }}
{{- with include "tidegate.controlPlane" . }}
config-type: {{ . }}.enabled
xds-server: {{ . }}.serverUrl
xds-node-id: {{ . }}.nodeId
{{- end }}
{{- end -}}

{{/* Values of other charts, and what they are called here. values.schema.json lets them through to here. */}}
{{- define "tidegate.otherNames" -}}
env: extraEnv
envVars: extraEnv
extraEnvVars: extraEnv
envFrom: extraEnvFrom
args: extraArgs
sidecars: extraContainers
containers: extraContainers
extraInitContainers: initContainers
volumes: extraVolumes
volumeMounts: extraVolumeMounts
extraDeploy: extraObjects
extraManifests: extraObjects
additionalLabels: commonLabels
labels: commonLabels
additionalAnnotations: commonAnnotations
annotations: commonAnnotations
podExtraLabels: podLabels
deployment: deploymentLabels
replicas: replicaCount
hpa: autoscaling
pdb: podDisruptionBudget
strategy: updateStrategy
config: policy.files
configMap: policy.existingConfigMap
logLevel: log.level
pullSecrets: imagePullSecrets
metrics: serviceMonitor
livenessProbe: probes
readinessProbe: probes
image.pullSecrets: imagePullSecrets
image.name: image.repository
serviceMonitor.additionalLabels: serviceMonitor.labels
prometheusRule.additionalLabels: prometheusRule.labels
service.port: service.grpcPort
redis.host: redis.address
redis.url: redis.address
redis.password: redis.auth
autoscaling.targetCPUUtilizationPercentage: autoscaling.targetCPUPercent
{{- end -}}

{{/*
The word of `known` that is most like `name`, by the pairs of letters that they share; empty if none is. Templates have no
arrays to change, so an edit distance would cost much more text.
*/}}
{{- define "tidegate.nearest" -}}
{{- $name := .name -}}
{{- $best := "" -}}
{{- $score := 0 -}}
{{- range .known -}}
{{- $word := . -}}
{{- $shared := 0 -}}
{{- range $start := until (max 0 (sub (len $name) 1) | int) -}}
{{- if contains (substr $start (add $start 2 | int) $name) $word -}}
{{- $shared = add $shared 1 -}}
{{- end -}}
{{- end -}}
{{- $percent := div (mul 200 $shared) (add (len $name) (len $word) -2 | max 1) -}}
{{- if gt $percent $score -}}
{{- $best = $word -}}
{{- $score = $percent -}}
{{- end -}}
{{- end -}}
{{- if ge ($score | int) 60 -}}{{ $best }}{{- end -}}
{{- end -}}
