package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/config"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// Names of flags that are used in errors or in the help of other flags. Where Kubernetes components have a similar
// flag, its name is used.
const (
	flagQPS   = "kube-api-qps"
	flagBurst = "kube-api-burst"

	flagAllowUnsupportedKubernetes = "allow-unsupported-kubernetes"

	flagNamespace             = "namespace"
	flagNamespaces            = "namespaces"
	flagDefaultServiceAccount = "default-service-account"
	flagMaxBlueprintMemory    = "max-blueprint-memory"

	flagWorkers         = "workers"
	flagResyncPeriod    = "resync-period"
	flagQueueMaxRetries = "queue-max-retries"
	flagMinRetryDelay   = "min-retry-delay"
	flagMaxRetryDelay   = "max-retry-delay"
	flagShutdownTimeout = "shutdown-timeout"

	flagLeaderElect    = "leader-elect"
	flagLeaseDuration  = "leader-elect-lease-duration"
	flagRenewDeadline  = "leader-elect-renew-deadline"
	flagRetryPeriod    = "leader-elect-retry-period"
	flagLeaseName      = "leader-elect-resource-name"
	flagLeaseNamespace = "leader-elect-resource-namespace"
	flagFenceOnServer  = "leader-elect-fence-on-server"

	flagHealth      = "health-probe-bind-address"
	flagMetrics     = "metrics-bind-address"
	flagSecure      = "metrics-secure"
	flagCertFile    = "tls-cert-file"
	flagKeyFile     = "tls-private-key-file"
	flagTypeLabels  = "metrics-type-labels"
	flagWebhook     = "webhook-bind-address"
	flagWebhookName = "webhook-name"
	flagLogFormat   = "logging-format"
	flagVerbosity   = "v"
	flagVModule     = "vmodule"

	flagConfig       = "config"
	flagFeatureGates = "feature-gates"
)

// options is the parsed command line.
type options struct {
	kubeconfig, context string
	qps                 float32
	burst               int
	// allowUnsupportedKubernetes allows API servers older than the minimum version.
	allowUnsupportedKubernetes bool

	platform           platform.Options
	maxBlueprintMemory string // quantity; "" for the default

	engine  dynamiccontroller.Config
	replica replica.Options
	// fenceOnServer makes writes carry what the policy of package serverfence checks.
	fenceOnServer bool

	healthAddress, metricsAddress, webhookAddress string
	metricsSecure, typeLabels                     bool
	certFile, keyFile                             string // of the metrics
	// webhookName is the name of the webhook's Service, Secret and ValidatingWebhookConfiguration.
	webhookName string

	logFormat string
	verbosity int
	vmodule   logsapi.VModuleConfiguration

	configFile   string
	featureGates map[string]bool
	features     featuregate.MutableFeatureGate
	tracing      *tracingapi.TracingConfiguration // nil if tracing is disabled
	// effective contains the values of all flags, before defaults from the environment are set.
	effective *config.Configuration

	sections cliflag.NamedFlagSets
	problems problems
}

// flags returns the flags, grouped into sections of the help.
func (o *options) flags() cliflag.NamedFlagSets {
	var sections cliflag.NamedFlagSets

	f := sections.FlagSet("cluster")
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"the kubeconfig `FILE` (default: $KUBECONFIG, else ~/.kube/config, else the service account of the Pod)")
	f.StringVar(&o.context, "context", "", "the `NAME` of the kubeconfig context (default: the current context)")
	f.Float32Var(&o.qps, flagQPS, 0,
		"maximum `NUMBER` of requests per second to the API server, not counting watches and "+
			"requests for the Lease. 0 means no limit other than the concurrency that --"+flagWorkers+" sets")
	f.IntVar(&o.burst, flagBurst, 0,
		"maximum `NUMBER` of requests in a burst, if --"+flagQPS+" is set (default: twice its value)")
	f.BoolVar(&o.allowUnsupportedKubernetes, flagAllowUnsupportedKubernetes, false,
		"run on versions of Kubernetes before "+testedKubernetes[0]+
			". They are not tested. Without this flag, the process ends with an error")

	f = sections.FlagSet("platform")
	f.StringVar(&o.platform.Namespace, flagNamespace, "", "the `NAMESPACE` of the platform, in which it stores revisions "+
		"(default: $POD_NAMESPACE, else the namespace of the Pod, else kube-system)")
	f.StringSliceVar(&o.platform.Namespaces, flagNamespaces, nil, "the `NAMESPACES`, separated by commas, to which "+
		"instances and their children are limited. The platform then needs no permissions for instances and children in "+
		"other namespaces, and serves no cluster-scoped types (default: all namespaces)")
	f.StringVar(&o.platform.DefaultServiceAccount, flagDefaultServiceAccount, "",
		"the `NAME` of the ServiceAccount that Blueprints without spec.serviceAccountName run as (default: none)")
	f.BoolVar(&o.platform.AllowPlatformIdentity, "allow-platform-identity", false, "allow Blueprints without a "+
		"ServiceAccount, which run with the permissions of the platform. Everyone who can write Blueprints then has these "+
		"permissions")
	f.StringVar(&o.maxBlueprintMemory, flagMaxBlueprintMemory, "", "maximum estimated memory of all Blueprints together, "+
		"as a `QUANTITY` such as 64Mi. 0 means no limit (default: a quarter of the memory limit, or 256Mi without one)")

	defaults := dynamiccontroller.DefaultConfig()
	f = sections.FlagSet("reconciling")
	f.IntVar(&o.engine.Workers, flagWorkers, defaults.Workers,
		"maximum `NUMBER` of objects that are reconciled at the same time, across all types")
	f.DurationVar(&o.engine.ResyncPeriod, flagResyncPeriod, defaults.ResyncPeriod,
		"interval at which each object is reconciled even without changes. A negative value disables resyncs")
	// Objects are not parked by default, because tenants cannot be expected to know how to resume a parked instance.
	f.IntVar(&o.engine.QueueMaxRetries, flagQueueMaxRetries, -1, "`NUMBER` of consecutive retries after which a failing "+
		"object is parked until it changes. With a negative value, objects are never parked")
	f.DurationVar(&o.engine.MinRetryDelay, flagMinRetryDelay, defaults.MinRetryDelay,
		"delay before the first retry. The delay doubles with each consecutive failure")
	f.DurationVar(&o.engine.MaxRetryDelay, flagMaxRetryDelay, defaults.MaxRetryDelay, "maximum delay before a retry")
	f.DurationVar(&o.engine.ShutdownTimeout, flagShutdownTimeout, defaults.ShutdownTimeout,
		"maximum time to wait for running reconciles at shutdown")

	o.replica = replica.DefaultOptions()
	o.replica.LeaderElection = new(bool)
	f = sections.FlagSet("leader election")
	f.BoolVar(o.replica.LeaderElection, flagLeaderElect, true,
		"reconcile only while this replica holds the Lease. If false, at most one replica can run")
	f.DurationVar(&o.replica.LeaseDuration, flagLeaseDuration, o.replica.LeaseDuration, "time, in whole seconds, "+
		"after which another replica replaces a leader that has not renewed the Lease. 90% of it must exceed the sum of "+
		"--"+flagRenewDeadline+" and --"+flagRetryPeriod)
	f.DurationVar(&o.replica.RenewDeadline, flagRenewDeadline, o.replica.RenewDeadline,
		"time for which the leader retries a failing renewal of the Lease before it stops leading")
	f.DurationVar(&o.replica.RetryPeriod, flagRetryPeriod, o.replica.RetryPeriod,
		"interval between attempts to acquire or renew the Lease")
	f.StringVar(&o.replica.LeaseName, flagLeaseName, "dynamic-controller", "the `NAME` of the Lease")
	f.StringVar(&o.replica.LeaseNamespace, flagLeaseNamespace, "",
		"the `NAMESPACE` of the Lease (default: the namespace of the platform)")
	f.BoolVar(&o.fenceOnServer, flagFenceOnServer, false, "let the API server reject writes that arrive after another "+
		"replica has acquired the Lease. Requires the ValidatingAdmissionPolicy and the permissions of the chart")

	f = sections.FlagSet("endpoint")
	f.StringVar(&o.healthAddress, flagHealth, ":8081", "the `ADDRESS` of the probes /livez, /readyz and /healthz, as "+
		"HOST:PORT or :PORT. With port 0, a free port is chosen and logged. 0 disables the probes")
	f.StringVar(&o.metricsAddress, flagMetrics, noAddress,
		"the `ADDRESS` of /metrics, /status, /ui, /statusz, /flagz and /debug, as HOST:PORT or :PORT. They are served "+
			"over TLS, to users whom the API server permits to read their paths. 0 disables them")
	f.BoolVar(&o.metricsSecure, flagSecure, true, "serve --"+flagMetrics+" over TLS. If false, only /metrics is served, "+
		"without TLS and to everyone, and the address must be a loopback address")
	f.StringVar(&o.certFile, flagCertFile, "", "the `FILE` with the certificate of --"+flagMetrics+", followed by those "+
		"of intermediate authorities. It is read again when it changes (default: a self-signed certificate)")
	f.StringVar(&o.keyFile, flagKeyFile, "", "the `FILE` with the private key of --"+flagCertFile)
	f.BoolVar(&o.typeLabels, flagTypeLabels, true, "label metrics with the group, version and resource of types. If "+
		"false, metrics are summed over all types")
	f.StringVar(&o.webhookAddress, flagWebhook, noAddress, "the `ADDRESS` of the webhook that checks Blueprints before "+
		"they are stored, as HOST:PORT or :PORT. 0 disables the webhook")
	f.StringVar(&o.webhookName, flagWebhookName, "dynamic-controller-webhook", "the `NAME` of the webhook's Service and "+
		"of the Secret with its certificate, both in the namespace of the platform, and of its "+
		"ValidatingWebhookConfiguration")

	f = sections.FlagSet("logging")
	f.StringVar(&o.logFormat, flagLogFormat, formatJSON, "the `FORMAT` of the log: json or text")
	f.IntVarP(&o.verbosity, flagVerbosity, "v", 0,
		"the `LEVEL` of detail of the log, from 0 to 127: 0 is meant for operators, 1 and above for developers")
	f.Var(logsapi.VModuleConfigurationPflag(&o.vmodule), flagVModule, "comma-separated list of `PATTERN=LEVEL` settings, "+
		"which override the level of detail for the source files that match the pattern. Only for the text format")

	f = sections.FlagSet("configuration")
	f.StringVar(&o.configFile, flagConfig, "", "the configuration `FILE`. Other flags override its fields")
	f.Var(cliflag.NewMapStringBool(&o.featureGates), flagFeatureGates, "`GATES` to set, as a comma-separated list of "+
		"NAME=true or NAME=false:\n"+strings.Join(newFeatureGate().KnownFeatures(), "\n"))

	o.sections, o.problems = sections, newProblems()
	for _, flags := range sections.FlagSets {
		flags.VisitAll(func(f *pflag.Flag) {
			f.Value = &flagValue{Value: f.Value, flag: f.Name, problems: o.problems}
			f.DefValue = strings.TrimPrefix(f.DefValue, "[]") // not shown in the help
		})
	}
	return sections
}

// problems contains the first problem of each flag.
type problems struct {
	first map[string]error
	// sources contains the file and the path of the field for each flag that is set in the configuration file.
	sources map[string]string
}

func newProblems() problems { return problems{map[string]error{}, map[string]string{}} }

func (p problems) add(flag, problem string, got any) {
	if text, ok := got.(string); ok {
		got = strconv.Quote(text)
	}
	if p.first[flag] == nil {
		p.first[flag] = fmt.Errorf("%s: %s, got %v", cmp.Or(p.sources[flag], "--"+flag), problem, got)
	}
}

// flagValue records an invalid value instead of returning an error, so that the problems of all flags are reported.
type flagValue struct {
	pflag.Value
	flag     string
	problems problems
}

// valueKinds describes the valid values of each flag type.
var valueKinds = map[string]string{
	"bool": "true or false", "duration": "a duration such as 1m30s", "float32": "a number", "int": "an integer",
	"stringSlice": "a list such as shop,team-a", "pattern=N,...": "a list such as reflector=4,replica*=2",
	"mapStringBool": "a list such as Collections=false",
}

func (v *flagValue) Set(text string) error {
	if v.Value.Set(text) != nil {
		v.problems.add(v.flag, "must be "+valueKinds[v.Type()], text)
	}
	return nil
}

// complete sets defaults that depend on other flags or on the environment.
func (o *options) complete() {
	if o.platform.Namespace == "" {
		o.platform.Namespace = ownNamespace()
	}
	if o.replica.LeaseNamespace == "" {
		o.replica.LeaseNamespace = o.platform.Namespace
	}
	// The replica waits longer than the engine, so that the engine can report which reconciles are still running.
	const grace = 5 * time.Second
	o.replica.ShutdownTimeout = o.engine.ShutdownTimeout + grace
	if o.logFormat == formatConsole {
		o.logFormat = formatText
	}
}

// validate returns an error that lists the problems of all flags. It also rejects zeros, which the library would
// replace with defaults.
func (o *options) validate() error {
	p, engine, elect := o.problems, o.engine, *o.replica.LeaderElection
	features, gatesErr := newFeatures(o.featureGates)
	o.features, o.platform.Disabled = features, disabledFeatures(features)
	memory, err := resource.ParseQuantity(cmp.Or(o.maxBlueprintMemory, "0"))
	o.platform.MaxBlueprintMemory = memory.Value()
	isAddress := func(text string) bool {
		_, _, err := net.SplitHostPort(text)
		return err == nil || text == noAddress
	}
	const (
		notNegative, positive = "must not be negative", "must be positive"
		address               = "must be HOST:PORT, :PORT, or 0 to disable the endpoint"
	)
	for _, rule := range []struct {
		flag    string
		valid   bool
		problem string
		got     any
	}{
		{flagQPS, o.qps >= 0, notNegative, o.qps},
		{flagBurst, o.burst >= 0, notNegative, o.burst},
		{flagBurst, o.burst == 0 || o.qps != 0, "requires --" + flagQPS, o.burst},
		{flagNamespace, len(validation.IsDNS1123Label(o.platform.Namespace)) == 0,
			"must be a DNS-1123 label, such as platform-system", o.platform.Namespace},
		{flagNamespaces, o.platform.Namespaces == nil || areNamespaces(o.platform.Namespaces),
			"must be distinct DNS-1123 labels, such as shop,team-a", strings.Join(o.platform.Namespaces, ",")},
		{flagDefaultServiceAccount, o.platform.DefaultServiceAccount == "" ||
			len(validation.IsDNS1123Subdomain(o.platform.DefaultServiceAccount)) == 0,
			"must be a DNS-1123 subdomain, such as blueprints", o.platform.DefaultServiceAccount},
		{flagMaxBlueprintMemory, err == nil && memory.Sign() >= 0,
			"must be a quantity of bytes such as 64Mi", o.maxBlueprintMemory},
		{flagWorkers, engine.Workers >= 1, "must be at least 1", engine.Workers},
		{flagResyncPeriod, engine.ResyncPeriod != 0, "must be positive, or negative to disable resyncs", engine.ResyncPeriod},
		{flagQueueMaxRetries, engine.QueueMaxRetries != 0,
			"must be at least 1, or negative to never park objects", engine.QueueMaxRetries},
		{flagMinRetryDelay, engine.MinRetryDelay > 0, positive, engine.MinRetryDelay},
		{flagMaxRetryDelay, engine.MaxRetryDelay > 0, positive, engine.MaxRetryDelay},
		{flagShutdownTimeout, engine.ShutdownTimeout > 0, positive, engine.ShutdownTimeout},
		{flagLeaseDuration, !elect || o.replica.LeaseDuration > 0, positive, o.replica.LeaseDuration},
		{flagRenewDeadline, !elect || o.replica.RenewDeadline > 0, positive, o.replica.RenewDeadline},
		{flagRetryPeriod, !elect || o.replica.RetryPeriod > 0, positive, o.replica.RetryPeriod},
		{flagFenceOnServer, elect || !o.fenceOnServer, "requires --" + flagLeaderElect + "=true", o.fenceOnServer},
		{flagHealth, isAddress(o.healthAddress), address, o.healthAddress},
		{flagMetrics, isAddress(o.metricsAddress), address, o.metricsAddress},
		{flagMetrics, o.metricsSecure || o.metricsAddress == noAddress || isLoopback(o.metricsAddress),
			"must be a loopback address, such as 127.0.0.1:8080, with --" + flagSecure + "=false", o.metricsAddress},
		{flagCertFile, o.certFile == "" || o.keyFile != "", "requires --" + flagKeyFile, o.certFile},
		{flagCertFile, o.certFile == "" || o.metricsSecure, "requires --" + flagSecure + "=true", o.certFile},
		{flagKeyFile, o.keyFile == "" || o.certFile != "", "requires --" + flagCertFile, o.keyFile},
		{flagWebhook, isAddress(o.webhookAddress), address, o.webhookAddress},
		{flagWebhookName, len(validation.IsDNS1035Label(o.webhookName)) == 0,
			"must be a DNS-1035 label, such as dynamic-controller-webhook", o.webhookName},
		{flagLogFormat, o.logFormat == formatJSON || o.logFormat == formatText, "must be json or text", o.logFormat},
		{flagVModule, len(o.vmodule) == 0 || o.logFormat == formatText, "requires --" + flagLogFormat + "=" + formatText,
			logsapi.VModuleConfigurationPflag(&o.vmodule).String()},
		{flagVerbosity, o.verbosity >= 0 && o.verbosity <= maxVerbosity,
			fmt.Sprintf("must be from 0 to %d", maxVerbosity), o.verbosity},
		{flagFeatureGates, gatesErr == nil, fmt.Sprint(gatesErr), cliflag.NewMapStringBool(&o.featureGates).String()},
	} {
		if !rule.valid {
			p.add(rule.flag, rule.problem, rule.got)
		}
	}
	o.validateLibraryOptions()
	var errs []error
	for _, flag := range slices.Sorted(maps.Keys(p.first)) {
		errs = append(errs, p.first[flag])
	}
	return errors.Join(errs...)
}

// areNamespaces reports whether names is a non-empty list of valid and distinct namespace names.
func areNamespaces(names []string) bool {
	isInvalid := func(name string) bool { return len(validation.IsDNS1123Label(name)) > 0 }
	return len(names) > 0 && sets.New(names...).Len() == len(names) && !slices.ContainsFunc(names, isInvalid)
}

// unquoted is a value that the library has already formatted.
type unquoted string

// libraryFields matches the library's errors about fields of its options.
var libraryFields = regexp.MustCompile(`invalid (?:Config|Options)\.(\w+) (.*?): (.*)`)

// validateLibraryOptions records the problems that the library reports about its options. It replaces field names with
// flag names.
func (o *options) validateLibraryOptions() {
	flags := map[string]string{
		"ResyncPeriod": flagResyncPeriod, "MinRetryDelay": flagMinRetryDelay, "MaxRetryDelay": flagMaxRetryDelay,
		"LeaseDuration": flagLeaseDuration, "RenewDeadline": flagRenewDeadline, "RetryPeriod": flagRetryPeriod,
		"LeaseNamespace": flagLeaseNamespace, "LeaseName": flagLeaseName,
	}
	if o.replica.LeaseNamespace == o.platform.Namespace {
		flags["LeaseNamespace"] = flagNamespace
	}
	var names []string
	for field, flag := range flags {
		names = append(names, field, "--"+flag)
	}
	cfg := &rest.Config{Host: "https://localhost"} // the constructors do not connect
	_, err1 := replica.New(logr.Discard(), cfg, o.replica)
	_, err2 := dynamiccontroller.NewForConfig(logr.Discard(), o.engine, cfg)
	for _, err := range []error{err1, err2} {
		if err == nil {
			continue
		}
		for _, match := range libraryFields.FindAllStringSubmatch(err.Error(), -1) {
			if flag, found := flags[match[1]]; found {
				o.problems.add(flag, strings.NewReplacer(names...).Replace(match[3]), unquoted(match[2]))
			}
		}
	}
}

// loggingConfiguration returns the configuration of the log.
func (o *options) loggingConfiguration() logsapi.LoggingConfiguration {
	return logsapi.LoggingConfiguration{
		Format: o.logFormat, Verbosity: logsapi.VerbosityLevel(o.verbosity), VModule: o.vmodule,
	}
}

func (o *options) metricsOptions() []metrics.Option {
	if o.typeLabels {
		return nil
	}
	return []metrics.Option{metrics.WithoutTypeLabels()}
}

// divideMemory sets the memory for the reconciles of instances to 30% of the process's memory limit, and the default
// of --max-blueprint-memory to a quarter. The rest is for caches, requests and garbage. memoryLimit is in
// bytes. If it is 0, the process has no limit, and is treated like one with 1 GiB.
func (o *options) divideMemory(memoryLimit int64) {
	const withoutLimit = 1 << 30
	memoryLimit = cmp.Or(memoryLimit, withoutLimit)
	if o.maxBlueprintMemory == "" {
		o.platform.MaxBlueprintMemory = memoryLimit / 4
	}
	o.platform.InstanceMemory, o.platform.Workers = memoryLimit/10*3, o.engine.Workers
}

// ownNamespace returns the namespace of this Pod, or kube-system outside of a Pod.
func ownNamespace() string {
	const file = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	if namespace := os.Getenv("POD_NAMESPACE"); namespace != "" {
		return namespace
	}
	if data, err := os.ReadFile(file); err == nil {
		if namespace := strings.TrimSpace(string(data)); namespace != "" {
			return namespace
		}
	}
	return metav1.NamespaceSystem
}

// restConfig returns the configuration for the clients. It searches for a kubeconfig in the same places as kubectl.
func (o *options) restConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	rules.WarnIfAllMissing = false // the error below reports this
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		searched := "~/.kube/config"
		if files := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); files != "" {
			searched = "KUBECONFIG=" + files
		}
		return nil, fmt.Errorf("no kubeconfig found in %s, and not running in a Pod: set --kubeconfig or $KUBECONFIG",
			searched)
	}
	if err != nil {
		return nil, fmt.Errorf("load the kubeconfig: %w", err)
	}
	if user := cfg.Impersonate.UserName; user != "" {
		return nil, fmt.Errorf("the kubeconfig impersonates %q, but the platform must impersonate ServiceAccounts itself: "+
			"use credentials without impersonation", user)
	}
	o.limitRequests(cfg)
	return cfg, nil
}

// limitRequests makes all clients that use cfg or a copy of it share one rate limiter. Package replica removes it from
// the client for the Lease, so that a busy leader does not lose the Lease.
func (o *options) limitRequests(cfg *rest.Config) {
	if o.qps == 0 {
		cfg.QPS = -1
		return
	}
	burst := o.burst
	if burst == 0 {
		burst = max(1, int(2*o.qps))
	}
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(o.qps, burst)
}
