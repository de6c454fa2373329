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
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// Names of flags that errors or other flags refer to. Flags that Kubernetes components also have use the same names.
const (
	flagQPS   = "kube-api-qps"
	flagBurst = "kube-api-burst"

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

	flagHealth    = "health-probe-bind-address"
	flagMetrics   = "metrics-bind-address"
	flagLogFormat = "log-format"
	flagVerbosity = "verbosity"
)

// options is the parsed command line.
type options struct {
	kubeconfig, context string
	qps                 float32
	burst               int

	platform           platform.Options
	maxBlueprintMemory string // a quantity; empty for the default

	engine  dynamiccontroller.Config
	replica replica.Options

	healthAddress, metricsAddress string

	logFormat string
	verbosity int

	problems problems
}

// flags returns the flags, grouped into the sections of the help.
func (o *options) flags() cliflag.NamedFlagSets {
	var sections cliflag.NamedFlagSets

	f := sections.FlagSet("cluster")
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"the kubeconfig `FILE` (default: $KUBECONFIG, else ~/.kube/config, else the service account of the Pod)")
	f.StringVar(&o.context, "context", "", "the `NAME` of the kubeconfig context (default: the current context)")
	f.Float32Var(&o.qps, flagQPS, 0,
		"maximum `NUMBER` of requests per second to the API server, not counting watches and "+
			"requests for the Lease. 0 means no limit: --"+flagWorkers+" limits the concurrency")
	f.IntVar(&o.burst, flagBurst, 0,
		"maximum `NUMBER` of requests in a burst, if --"+flagQPS+" is set (default: twice its value)")

	f = sections.FlagSet("platform")
	f.StringVar(&o.platform.Namespace, flagNamespace, "", "the `NAMESPACE` of the platform, in which it stores revisions "+
		"(default: $POD_NAMESPACE, else the namespace of the Pod, else kube-system)")
	f.StringSliceVar(&o.platform.Namespaces, flagNamespaces, nil, "the `NAMESPACES` of instances and their children, "+
		"separated by commas. The platform needs no permissions for them in other namespaces, and serves no cluster-scoped "+
		"types (default: all namespaces)")
	f.StringVar(&o.platform.DefaultServiceAccount, flagDefaultServiceAccount, "",
		"the `NAME` of the ServiceAccount whose "+
			"permissions apply to Blueprints without spec.serviceAccountName (default: none)")
	f.BoolVar(&o.platform.AllowPlatformIdentity, "allow-platform-identity", false, "serve Blueprints without a "+
		"ServiceAccount with the permissions of the platform. Everyone who can write Blueprints has these permissions then")
	f.StringVar(&o.maxBlueprintMemory, flagMaxBlueprintMemory, "", "maximum estimated memory of all Blueprints together, "+
		"as a `QUANTITY` such as 64Mi. 0 means no limit (default: a quarter of the memory limit, or 256Mi without one)")

	defaults := dynamiccontroller.DefaultConfig()
	f = sections.FlagSet("reconciling")
	f.IntVar(&o.engine.Workers, flagWorkers, defaults.Workers,
		"maximum `NUMBER` of objects that are reconciled at the same time, across all types")
	f.DurationVar(&o.engine.ResyncPeriod, flagResyncPeriod, defaults.ResyncPeriod,
		"interval at which each object is reconciled even without changes. A negative value disables resyncs")
	// Tenants cannot resume a parked instance, so instances are not parked by default.
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
		"reconcile only while this replica holds the Lease. With false, no other replica must run")
	f.DurationVar(&o.replica.LeaseDuration, flagLeaseDuration, o.replica.LeaseDuration, "time after which other replicas "+
		"replace a leader that does not renew the Lease, in whole seconds. Nine tenths of it must exceed the sum of "+
		"--"+flagRenewDeadline+" and --"+flagRetryPeriod)
	f.DurationVar(&o.replica.RenewDeadline, flagRenewDeadline, o.replica.RenewDeadline,
		"time for which the leader retries a failing renewal of the Lease before it stops leading")
	f.DurationVar(&o.replica.RetryPeriod, flagRetryPeriod, o.replica.RetryPeriod,
		"interval between attempts to acquire or renew the Lease")
	f.StringVar(&o.replica.LeaseName, flagLeaseName, "dynamic-controller", "the `NAME` of the Lease")
	f.StringVar(&o.replica.LeaseNamespace, flagLeaseNamespace, "",
		"the `NAMESPACE` of the Lease (default: the namespace of the platform)")

	f = sections.FlagSet("endpoint")
	f.StringVar(&o.healthAddress, flagHealth, ":8081", "the `ADDRESS` of the probes /livez and /readyz, as HOST:PORT or "+
		":PORT. With port 0, a free port is chosen and logged. 0 disables the probes")
	f.StringVar(&o.metricsAddress, flagMetrics, noAddress,
		"the `ADDRESS` of the metrics at /metrics, as HOST:PORT or :PORT. 0 disables the metrics")

	f = sections.FlagSet("logging")
	f.StringVar(&o.logFormat, flagLogFormat, formatJSON, "the `FORMAT` of the log: json or console")
	f.IntVarP(&o.verbosity, flagVerbosity, "v", 0,
		"the `LEVEL` of detail of the log, from 0 to 127: 0 is meant for operators, 1 and above for developers")

	o.problems = problems{}
	for _, flags := range sections.FlagSets {
		flags.VisitAll(func(f *pflag.Flag) {
			f.Value = &flagValue{Value: f.Value, flag: f.Name, problems: o.problems}
			f.DefValue = strings.TrimPrefix(f.DefValue, "[]") // not shown in the help
		})
	}
	return sections
}

// problems contains the first problem of each flag.
type problems map[string]error

func (p problems) add(flag, problem string, got any) {
	if text, ok := got.(string); ok {
		got = strconv.Quote(text)
	}
	if p[flag] == nil {
		p[flag] = fmt.Errorf("--%s: %s, got %v", flag, problem, got)
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
	"stringSlice": "a list such as shop,team-a",
}

func (v *flagValue) Set(text string) error {
	if v.Value.Set(text) != nil {
		v.problems.add(v.flag, "must be "+valueKinds[v.Type()], text)
	}
	return nil
}

// complete sets the defaults that depend on other flags or on the environment.
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
}

// validate returns an error that lists the problems of all flags. Zeros are rejected here, because the library replaces
// them with defaults.
func (o *options) validate() error {
	p, engine, elect := o.problems, o.engine, *o.replica.LeaderElection
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
		{flagNamespaces, o.platform.Namespaces == nil || platform.AreNamespaces(o.platform.Namespaces),
			"must be different DNS-1123 labels, such as shop,team-a", strings.Join(o.platform.Namespaces, ",")},
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
		{flagHealth, isAddress(o.healthAddress), address, o.healthAddress},
		{flagMetrics, isAddress(o.metricsAddress), address, o.metricsAddress},
		{flagLogFormat, o.logFormat == formatJSON || o.logFormat == formatConsole,
			"must be json or console", o.logFormat},
		{flagVerbosity, o.verbosity >= 0 && o.verbosity <= maxVerbosity,
			fmt.Sprintf("must be from 0 to %d", maxVerbosity), o.verbosity},
	} {
		if !rule.valid {
			p.add(rule.flag, rule.problem, rule.got)
		}
	}
	o.validateLibraryOptions()
	var errs []error
	for _, flag := range slices.Sorted(maps.Keys(p)) {
		errs = append(errs, p[flag])
	}
	return errors.Join(errs...)
}

// unquoted is a value that the library has already formatted.
type unquoted string

// libraryFields matches the errors of the library about fields of its options.
var libraryFields = regexp.MustCompile(`invalid (?:Config|Options)\.(\w+) (.*?): (.*)`)

// validateLibraryOptions records the problems that the library reports for its options under the names of the flags.
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
	_, err1 := replica.New(cfg, o.replica)
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

// limitBlueprints sets the default of --max-blueprint-memory. memoryLimit is the memory limit of the process. The value
// 0 means no limit.
func (o *options) limitBlueprints(memoryLimit int64) {
	const share, withoutLimit = 4, 256 << 20
	switch {
	case o.maxBlueprintMemory != "":
	case memoryLimit > 0:
		o.platform.MaxBlueprintMemory = memoryLimit / share
	default:
		o.platform.MaxBlueprintMemory = withoutLimit
	}
}

// ownNamespace returns the namespace of the Pod in which this process runs, or kube-system outside of a Pod.
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

// restConfig returns the configuration of the clients. It looks for the kubeconfig in the same places as kubectl.
func (o *options) restConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	rules.WarnIfAllMissing = false // reported by the error below
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
		return nil, fmt.Errorf("the kubeconfig impersonates %q: use the platform's own credentials, "+
			"because it impersonates the ServiceAccounts of Blueprints", user)
	}
	o.limitRequests(cfg)
	return cfg, nil
}

// limitRequests makes all clients that use cfg or a copy of it share one rate limit. Package replica removes the limit
// from its client for the Lease, because a busy leader could otherwise lose the Lease.
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
