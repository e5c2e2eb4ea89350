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

{{- define "tidegate.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/*
Labels and annotations of an object or a pod: `root`, and maps of its own as `labels` and `annotations`. Labels that
selectors use win over all others. `name` replaces the name label, for pods that the Service must not select.
*/}}
{{- define "tidegate.labelsAndAnnotations" -}}
{{- $own := include "tidegate.labels" .root | fromYaml -}}
{{- with .name }}{{ $_ := set $own "app.kubernetes.io/name" . }}{{ end -}}
{{- $more := mergeOverwrite dict .root.Values.commonLabels (.labels | default dict) -}}
labels: {{- mergeOverwrite dict $more $own | toYaml | nindent 2 }}
{{- with mergeOverwrite dict .root.Values.commonAnnotations (.annotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
The metadata of an object: `root`, and what it has of its own: a `suffix` of the name, a `namespace`, `labels`, and
`annotations`.
*/}}
{{- define "tidegate.metadata" -}}
name: {{ include "tidegate.fullname" .root }}{{ .suffix }}
namespace: {{ default (include "tidegate.namespace" .root) .namespace }}
{{ include "tidegate.labelsAndAnnotations" . }}
{{- end -}}

{{/* Whether the policy is the chart's example: "true", or empty. */}}
{{- define "tidegate.examplePolicy" -}}
{{- if not (or .Values.policy.files .Values.policy.existingConfigMap (include "tidegate.controlPlane" .) (ne .Values.mode "embedded")) -}}
true
{{- end -}}
{{- end -}}

{{/* The control plane that sends the policies; empty if they are files. */}}
{{- define "tidegate.controlPlane" -}}
{{- if .Values.envoyGateway.enabled -}}envoyGateway{{- else if .Values.aiGateway.enabled -}}aiGateway{{- end -}}
{{- end -}}

{{/* "true" if the gRPC port uses TLS. */}}
{{- define "tidegate.grpcTls" -}}
{{- if or .Values.tls.enabled .Values.envoyGateway.enabled -}}true{{- end -}}
{{- end -}}

{{/*
The name of an image, from `image` and the tag to use without `image.tag`. A registry replaces the host of the repository:
that is a first part with a dot or a port.
*/}}
{{- define "tidegate.imageName" -}}
{{- $repository := .image.repository -}}
{{- with default (.root.Values.global).imageRegistry .image.registry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^[^/]*[.:][^/]*/" $repository "") -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.image" -}}
{{- include "tidegate.imageName" (dict "root" . "image" .Values.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{/* The pull secrets of a pod, as a field with its name; empty without any. */}}
{{- define "tidegate.pullSecrets" -}}
{{- $secrets := list -}}
{{- range concat ((.Values.global).imagePullSecrets | default list) .Values.imagePullSecrets -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- with $secrets -}}
imagePullSecrets: {{- toYaml (uniq .) | nindent 2 }}
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

{{/* The texts of the policy by file name, as YAML. */}}
{{- define "tidegate.policyFiles" -}}
{{- $files := dict -}}
{{- if include "tidegate.examplePolicy" . -}}
{{- $_ := set $files "example.yaml" (.Files.Get "files/example.yaml") -}}
{{- end -}}
{{- range $name, $policy := .Values.policy.files -}}
{{- $_ := set $files $name (kindIs "string" $policy | ternary $policy (toYaml $policy | printf "%s\n")) -}}
{{- end -}}
{{- toYaml $files -}}
{{- end -}}

{{/* The name of the headless Service of the debug port, and that port. */}}
{{- define "tidegate.debugHost" -}}
{{- printf "%s-debug.%s.svc" (include "tidegate.fullname" .) (include "tidegate.namespace" .) -}}
{{- end -}}

{{- define "tidegate.debugPort" -}}
{{- dig "debug-port" 6070 .Values.settings | int -}}
{{- end -}}

{{/* The largest number of replicas. It divides the local limits while Redis is down. */}}
{{- define "tidegate.replicasMax" -}}
{{- if or .Values.autoscaling.enabled (kindIs "invalid" .Values.replicaCount) -}}
{{- .Values.autoscaling.maxReplicas | int -}}
{{- else -}}
{{- max 1 (.Values.replicaCount | int) -}}
{{- end -}}
{{- end -}}

{{/* Short, because a StatefulSet of more than 52 characters gets no pods. */}}
{{- define "tidegate.valkeyName" -}}
{{- printf "%s-valkey" (include "tidegate.fullname" . | trunc 45 | trimSuffix "-") -}}
{{- end -}}

{{- define "tidegate.valkeySelector" -}}
app.kubernetes.io/name: {{ include "tidegate.name" . }}-valkey
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The address of mode redis: the one that is given, or that of the bundled Valkey. */}}
{{- define "tidegate.redisAddress" -}}
{{- if .Values.valkey.enabled -}}
{{- printf "%s.%s.svc:6379" (include "tidegate.valkeyName" .) (include "tidegate.namespace" .) -}}
{{- else -}}
{{- .Values.redis.address -}}
{{- end -}}
{{- end -}}

{{/* The value of --redis-url: an address, a master and sentinels, or nodes. */}}
{{- define "tidegate.redisUrl" -}}
{{- if eq .Values.mode "redis" -}}
{{- include "tidegate.redisAddress" . -}}
{{- else if eq .Values.mode "sentinel" -}}
{{- prepend .Values.redis.sentinel.addresses .Values.redis.sentinel.master | join "," -}}
{{- else if eq .Values.mode "cluster" -}}
{{- join "," .Values.redis.cluster.addresses -}}
{{- end -}}
{{- end -}}

{{/* The ports of the Redis addresses, and 6379 for a master behind sentinels. */}}
{{- define "tidegate.redisPorts" -}}
{{- $addresses := list (include "tidegate.redisAddress" .) -}}
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

{{- define "tidegate.testSelector" -}}
app.kubernetes.io/name: {{ include "tidegate.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* NetworkPolicyPeers: from namespaces by name, and peers; with neither, everybody in the namespace. */}}
{{- define "tidegate.peers" -}}
{{- $peers := list -}}
{{- with first . -}}
{{- $names := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" . -}}
{{- $peers = append $peers (dict "namespaceSelector" (dict "matchExpressions" (list $names))) -}}
{{- end -}}
{{- concat $peers (last .) | default (list (dict "podSelector" dict)) | toYaml -}}
{{- end -}}
