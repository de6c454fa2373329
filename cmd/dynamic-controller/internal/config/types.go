package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// Version and kind of the configuration.
const (
	APIVersion = "config.platform.example.com/v1alpha1"
	Kind       = "DynamicControllerConfiguration"
)

// Configuration is the content of a configuration file. Absent fields have the defaults of their flags. The struct tag
// "flag" contains the name of the flag whose help text describes the field. Durations are strings such as 1m30s.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	Cluster        Cluster        `json:"cluster,omitzero"`
	Platform       Platform       `json:"platform,omitzero"`
	Reconciling    Reconciling    `json:"reconciling,omitzero"`
	LeaderElection LeaderElection `json:"leaderElection,omitzero"`
	Health         Health         `json:"health,omitzero"`
	Metrics        Metrics        `json:"metrics,omitzero"`
	Webhook        Webhook        `json:"webhook,omitzero"`
	Logging        Logging        `json:"logging,omitzero"`
	// FeatureGates enables or disables features by name. Gates in the flag override gates of the same name.
	FeatureGates map[string]bool `json:"featureGates,omitempty" flag:"feature-gates"`
	// Tracing enables the export of spans. It has no flags.
	Tracing *tracingapi.TracingConfiguration `json:"tracing,omitempty"`
}

// Cluster configures the API server clients.
type Cluster struct {
	Kubeconfig                 *string  `json:"kubeconfig,omitempty" flag:"kubeconfig"`
	Context                    *string  `json:"context,omitempty" flag:"context"`
	QPS                        *float32 `json:"qps,omitempty" flag:"kube-api-qps"`
	Burst                      *int32   `json:"burst,omitempty" flag:"kube-api-burst"`
	AllowUnsupportedKubernetes *bool    `json:"allowUnsupportedKubernetes,omitempty" flag:"allow-unsupported-kubernetes"`
}

// Platform configures how Blueprints are served.
type Platform struct {
	Namespace             *string  `json:"namespace,omitempty" flag:"namespace"`
	Namespaces            []string `json:"namespaces,omitempty" flag:"namespaces"`
	DefaultServiceAccount *string  `json:"defaultServiceAccount,omitempty" flag:"default-service-account"`
	AllowPlatformIdentity *bool    `json:"allowPlatformIdentity,omitempty" flag:"allow-platform-identity"`
	MaxBlueprintMemory    *string  `json:"maxBlueprintMemory,omitempty" flag:"max-blueprint-memory"`
}

// Reconciling configures the workers and the queue.
type Reconciling struct {
	Workers         *int32  `json:"workers,omitempty" flag:"workers"`
	ResyncPeriod    *string `json:"resyncPeriod,omitempty" flag:"resync-period"`
	QueueMaxRetries *int32  `json:"queueMaxRetries,omitempty" flag:"queue-max-retries"`
	MinRetryDelay   *string `json:"minRetryDelay,omitempty" flag:"min-retry-delay"`
	MaxRetryDelay   *string `json:"maxRetryDelay,omitempty" flag:"max-retry-delay"`
	ShutdownTimeout *string `json:"shutdownTimeout,omitempty" flag:"shutdown-timeout"`
}

// LeaderElection configures the Lease.
type LeaderElection struct {
	LeaderElect       *bool   `json:"leaderElect,omitempty" flag:"leader-elect"`
	LeaseDuration     *string `json:"leaseDuration,omitempty" flag:"leader-elect-lease-duration"`
	RenewDeadline     *string `json:"renewDeadline,omitempty" flag:"leader-elect-renew-deadline"`
	RetryPeriod       *string `json:"retryPeriod,omitempty" flag:"leader-elect-retry-period"`
	ResourceName      *string `json:"resourceName,omitempty" flag:"leader-elect-resource-name"`
	ResourceNamespace *string `json:"resourceNamespace,omitempty" flag:"leader-elect-resource-namespace"`
	FenceOnServer     *bool   `json:"fenceOnServer,omitempty" flag:"leader-elect-fence-on-server"`
}

// Health configures the probes.
type Health struct {
	BindAddress *string `json:"bindAddress,omitempty" flag:"health-probe-bind-address"`
}

// Metrics configures the metrics and the other diagnostics.
type Metrics struct {
	BindAddress       *string `json:"bindAddress,omitempty" flag:"metrics-bind-address"`
	Secure            *bool   `json:"secure,omitempty" flag:"metrics-secure"`
	TypeLabels        *bool   `json:"typeLabels,omitempty" flag:"metrics-type-labels"`
	TLSCertFile       *string `json:"tlsCertFile,omitempty" flag:"tls-cert-file"`
	TLSPrivateKeyFile *string `json:"tlsPrivateKeyFile,omitempty" flag:"tls-private-key-file"`
}

// Webhook configures the admission webhook.
type Webhook struct {
	BindAddress *string `json:"bindAddress,omitempty" flag:"webhook-bind-address"`
	Name        *string `json:"name,omitempty" flag:"webhook-name"`
}

// Logging configures the log.
type Logging struct {
	Format    *string                      `json:"format,omitempty" flag:"logging-format"`
	Verbosity *int32                       `json:"verbosity,omitempty" flag:"v"`
	VModule   logsapi.VModuleConfiguration `json:"vmodule,omitempty" flag:"vmodule"`
}
