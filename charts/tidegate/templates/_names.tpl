{{/* Names, labels, and values that several manifests share. */}}

{{- define "tidegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tidegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if .Values.envoyGateway.enabled -}}
envoy-ratelimit
{{- else if .Values.aiGateway.enabled -}}
envoy-ai-gateway-ratelimit
{{- else if contains (include "tidegate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tidegate.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ include "tidegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The control plane that sends the policies; empty if they are files. */}}
{{- define "tidegate.controlPlane" -}}
{{- if .Values.envoyGateway.enabled -}}envoyGateway{{- else if .Values.aiGateway.enabled -}}aiGateway{{- end -}}
{{- end -}}

{{/* "true" if the gRPC port uses TLS. */}}
{{- define "tidegate.grpcTls" -}}
{{- if or .Values.tls.enabled .Values.envoyGateway.enabled -}}true{{- end -}}
{{- end -}}

{{- define "tidegate.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tidegate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.policyConfigMap" -}}
{{- default (printf "%s-policy" (include "tidegate.fullname" .)) .Values.policy.existingConfigMap -}}
{{- end -}}

{{/* The largest number of replicas. It divides the local limits while Redis is down. */}}
{{- define "tidegate.replicasMax" -}}
{{- if .Values.autoscaling.enabled -}}
{{- .Values.autoscaling.maxReplicas | int -}}
{{- else -}}
{{- max 1 (.Values.replicaCount | int) -}}
{{- end -}}
{{- end -}}

{{/* The value of --redis-url: an address, a master and sentinels, or nodes. */}}
{{- define "tidegate.redisUrl" -}}
{{- if eq .Values.mode "redis" -}}
{{- .Values.redis.address -}}
{{- else if eq .Values.mode "sentinel" -}}
{{- prepend .Values.redis.sentinel.addresses .Values.redis.sentinel.master | join "," -}}
{{- else if eq .Values.mode "cluster" -}}
{{- join "," .Values.redis.cluster.addresses -}}
{{- end -}}
{{- end -}}

{{/* The ports of the Redis addresses, and 6379 for a master behind sentinels. */}}
{{- define "tidegate.redisPorts" -}}
{{- $addresses := list .Values.redis.address -}}
{{- $default := "6379" -}}
{{- if eq .Values.mode "sentinel" -}}
{{- $addresses = .Values.redis.sentinel.addresses -}}
{{- $default = "26379" -}}
{{- else if eq .Values.mode "cluster" -}}
{{- $addresses = .Values.redis.cluster.addresses -}}
{{- end -}}
{{- $ports := list -}}
{{- range $addresses -}}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" .) -}}
{{- $ports = append $ports (default $default $port | int) -}}
{{- end -}}
{{- if eq .Values.mode "sentinel" -}}
{{- $ports = append $ports 6379 -}}
{{- end -}}
{{- range .Values.networkPolicy.extraRedisPorts -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}
