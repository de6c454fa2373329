package main

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// parse returns the options of a valid command line.
func parse(args ...string) (parsed *options, err error) {
	cmd := newRunCommand(func(_ context.Context, o *options) error {
		parsed = o
		return nil
	})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(append([]string{}, args...))
	return parsed, cmd.Execute()
}

func TestFlags_ReportProblemsByFlagName(t *testing.T) {
	const badNamespaces = "--namespaces: must be distinct DNS-1123 labels, such as shop,team-a, got "
	for name, test := range map[string]struct {
		args string
		want []string // lines of the error
	}{
		"defaults": {},
		"short lease durations": {args: "--leader-elect-lease-duration=3s --leader-elect-renew-deadline=2s " +
			"--leader-elect-retry-period=500ms"},
		"several problems": {
			args: "--workers=0 --leader-elect=maybe --logging-format=xml --shutdown-timeout=20 --metrics-bind-address=80 " +
				"-v 200 --kube-api-qps=many --default-service-account=A_b --queue-max-retries=0 " +
				"--min-retry-delay=0 --resync-period=0",
			want: []string{
				`--default-service-account: must be a DNS-1123 subdomain, such as blueprints, got "A_b"`,
				`--kube-api-qps: must be a number, got "many"`,
				`--leader-elect: must be true or false, got "maybe"`,
				`--logging-format: must be json or text, got "xml"`,
				`--metrics-bind-address: must be HOST:PORT, :PORT, or 0 to disable the endpoint, got "80"`,
				`--min-retry-delay: must be positive, got 0s`,
				`--queue-max-retries: must be at least 1, or negative to never park objects, got 0`,
				`--resync-period: must be positive, or negative to disable resyncs, got 0s`,
				`--shutdown-timeout: must be a duration such as 1m30s, got "20"`,
				`--v: must be from 0 to 127, got 200`,
				`--workers: must be at least 1, got 0`,
			},
		},
		"short resync period": {
			args: "--resync-period=10ms",
			want: []string{"--resync-period: must be at least 1s, or negative to disable resyncs, got 10ms"},
		},
		"retry delays in the wrong order": {
			args: "--min-retry-delay=2s --max-retry-delay=1s",
			want: []string{"--min-retry-delay: must not exceed --max-retry-delay, which is 1s, got 2s"},
		},
		"metrics for everyone": {
			args: "--metrics-bind-address=:8080 --metrics-secure=false --tls-cert-file=tls.crt",
			want: []string{
				`--metrics-bind-address: must be a loopback address, such as 127.0.0.1:8080, with --metrics-secure=false, ` +
					`got ":8080"`,
				`--tls-cert-file: requires --tls-private-key-file, got "tls.crt"`,
			},
		},
		"metrics on a loopback address": {args: "--metrics-bind-address=127.0.0.1:8080 --metrics-secure=false"},
		"certificate without TLS": {
			args: "--metrics-bind-address=127.0.0.1:8080 --metrics-secure=false --tls-cert-file=tls.crt " +
				"--tls-private-key-file=tls.key",
			want: []string{`--tls-cert-file: requires --metrics-secure=true, got "tls.crt"`},
		},
		"key without certificate": {
			args: "--tls-private-key-file=tls.key",
			want: []string{`--tls-private-key-file: requires --tls-cert-file, got "tls.key"`},
		},
		"negative requests": {
			args: "--kube-api-qps=-1 --kube-api-burst=-1",
			want: []string{"--kube-api-burst: must not be negative, got -1", "--kube-api-qps: must not be negative, got -1"},
		},
		"burst without a limit": {
			args: "--kube-api-burst=1",
			want: []string{"--kube-api-burst: requires --kube-api-qps, got 1"},
		},
		"memory that is not a quantity": {
			args: "--max-blueprint-memory=large",
			want: []string{`--max-blueprint-memory: must be a quantity of bytes such as 64Mi, got "large"`},
		},
		"negative memory": {
			args: "--max-blueprint-memory=-1Mi",
			want: []string{`--max-blueprint-memory: must be a quantity of bytes such as 64Mi, got "-1Mi"`},
		},
		"namespace of the platform": {
			args: "--namespace=a.b",
			want: []string{`--namespace: must be a DNS-1123 label, such as platform-system, got "a.b"`},
		},
		"invalid names of namespaces": {
			args: "--namespaces=shop,Team",
			want: []string{badNamespaces + `"shop,Team"`},
		},
		"no namespaces": {
			args: "--namespaces=",
			want: []string{badNamespaces + `""`},
		},
		"an empty name of a namespace": {
			args: "--namespaces=shop,",
			want: []string{badNamespaces + `"shop,"`},
		},
		"a duplicate namespace": {
			args: "--namespaces=shop,team --namespaces=shop",
			want: []string{badNamespaces + `"shop,team,shop"`},
		},
		"namespaces that cannot be parsed": {
			args: `--namespaces="shop`,
			want: []string{`--namespaces: must be a list such as shop,team-a, got "\"shop"`},
		},
		"lease duration too short for the other durations": {
			args: "--leader-elect-lease-duration=12s",
			want: []string{"--leader-elect-lease-duration: must exceed --leader-elect-renew-deadline 10s + " +
				"--leader-elect-retry-period 2s + a tenth of itself 1.2s = 13.2s, got 12s"},
		},
		"lease duration with a fraction of a second": {
			args: "--leader-elect-lease-duration=15500ms",
			want: []string{"--leader-elect-lease-duration: must be a number of whole seconds, " +
				"because a Lease stores seconds, got 15.5s"},
		},
		"renew deadline shorter than one attempt": {
			args: "--leader-elect-renew-deadline=1s",
			want: []string{"--leader-elect-renew-deadline: must exceed 1.2 x --leader-elect-retry-period = 2.4s, got 1s"},
		},
		"zero durations of leader election": {
			args: "--leader-elect-lease-duration=0 --leader-elect-retry-period=-1s",
			want: []string{
				"--leader-elect-lease-duration: must be positive, got 0s",
				"--leader-elect-retry-period: must be positive, got -1s",
			},
		},
		"zero durations without leader election": {args: "--leader-elect=false --leader-elect-lease-duration=0"},
		"invalid names of the Lease": {
			args: "--leader-elect-resource-name=A_B --leader-elect-resource-namespace=c.d",
			want: []string{"--leader-elect-resource-name: a lowercase RFC 1123 ",
				"--leader-elect-resource-namespace: must not contain dots, got c.d"},
		},
		"empty name of the Lease": {
			args: "--leader-elect-resource-name=",
			want: []string{`--leader-elect-resource-name: is required with leader election, got ""`},
		},
		"fence on the server without leader election": {
			args: "--leader-elect=false --leader-elect-fence-on-server",
			want: []string{"--leader-elect-fence-on-server: requires --leader-elect=true, got true"},
		},
		"fence on the server":                  {args: "--leader-elect-fence-on-server"},
		"an address and a name of the webhook": {args: "--webhook-bind-address=:9443 --webhook-name=hook"},
		"an invalid address and name of the webhook": {
			args: "--webhook-bind-address=9443 --webhook-name=a.b",
			want: []string{
				`--webhook-bind-address: must be HOST:PORT, :PORT, or 0 to disable the endpoint, got "9443"`,
				`--webhook-name: must be a DNS-1035 label, such as dynamic-controller-webhook, got "a.b"`,
			},
		},
		"vmodule with the JSON format": {
			args: "--vmodule=reflector=4",
			want: []string{`--vmodule: requires --logging-format=text, got "reflector=4"`},
		},
		"invalid vmodule": {
			args: "--vmodule=reflector",
			want: []string{`--vmodule: must be a list such as reflector=4,replica*=2, got "reflector"`},
		},
		"unknown feature gates": {
			args: "--feature-gates=Collection=true,Other=false",
			want: []string{"--feature-gates: unknown feature gate Collection; did you mean Collections?, unknown feature gate " +
				`Other, got "Collection=true,Other=false"`},
		},
		"invalid feature gates": {
			args: "--feature-gates=Collections",
			want: []string{`--feature-gates: must be a list such as Collections=false, got "Collections"`},
		},
		"former names of flags": {args: "--log-format=console --verbosity=3 --vmodule=reflector=4"},
		"unknown flag":          {args: "--worker=1", want: []string{"unknown flag: --worker"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(strings.Fields(test.args)...)
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("got problems:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestFlags_SetOptions(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "from-the-pod")
	o, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	if p := o.platform; p.Namespace != "from-the-pod" || p.Namespaces != nil || p.DefaultServiceAccount != "" ||
		p.AllowPlatformIdentity {
		t.Errorf("got platform defaults %+v", p)
	}
	if o.replica.LeaseNamespace != "from-the-pod" || !*o.replica.LeaderElection ||
		o.replica.LeaseDuration != 15*time.Second {
		t.Errorf("got leader election defaults %+v", o.replica)
	}
	if o.engine.QueueMaxRetries >= 0 {
		t.Errorf("by default, instances are parked after %d retries", o.engine.QueueMaxRetries)
	}

	o, err = parse("--namespace=own", "--namespaces=shop,team-a", "--default-service-account=some.name",
		"--allow-platform-identity", "--leader-elect=false", "--shutdown-timeout=1m", "--queue-max-retries=3")
	if err != nil {
		t.Fatal(err)
	}
	if p := o.platform; p.Namespace != "own" || !slices.Equal(p.Namespaces, []string{"shop", "team-a"}) ||
		p.DefaultServiceAccount != "some.name" || !p.AllowPlatformIdentity {
		t.Errorf("got platform options %+v", p)
	}
	if o.replica.LeaseNamespace != "own" || *o.replica.LeaderElection {
		t.Errorf("got leader election options %+v", o.replica)
	}
	if o.engine.QueueMaxRetries != 3 || o.replica.ShutdownTimeout <= o.engine.ShutdownTimeout {
		t.Errorf("got engine options %+v and replica shutdown timeout %s", o.engine, o.replica.ShutdownTimeout)
	}
}

func TestFlags_MemoryBudgetDefaultsToAShareOfTheMemoryLimit(t *testing.T) {
	for name, test := range map[string]struct {
		args        []string
		limit, want int64
	}{
		"with a limit":    {limit: 200 << 20, want: 50 << 20},
		"without a limit": {want: 256 << 20},
		"set":             {args: []string{"--max-blueprint-memory=64Mi"}, limit: 200 << 20, want: 64 << 20},
		"disabled":        {args: []string{"--max-blueprint-memory=0"}, limit: 200 << 20},
	} {
		o, err := parse(test.args...)
		if err != nil {
			t.Fatal(err)
		}
		if o.divideMemory(test.limit); o.platform.MaxBlueprintMemory != test.want {
			t.Errorf("%s: got %d bytes, want %d", name, o.platform.MaxBlueprintMemory, test.want)
		}
		if want := cmp.Or(test.limit, 1<<30) / 10 * 3; o.platform.InstanceMemory != want || o.platform.Workers != 10 {
			t.Errorf("%s: got %d bytes for %d workers, want %d for 10", name, o.platform.InstanceMemory, o.platform.Workers,
				want)
		}
	}
}

func TestFlags_LimitRequestsOfAllClients(t *testing.T) {
	for name, test := range map[string]struct {
		args  []string
		qps   float32 // 0 for no limit
		burst int
	}{
		"default":        {},
		"rate":           {args: []string{"--kube-api-qps=20"}, qps: 20, burst: 40},
		"rate of 0.2":    {args: []string{"--kube-api-qps=0.2"}, qps: 0.2, burst: 1},
		"rate and burst": {args: []string{"--kube-api-qps=20", "--kube-api-burst=30"}, qps: 20, burst: 30},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(test.args...)
			if err != nil {
				t.Fatal(err)
			}
			cfg := &rest.Config{}
			o.limitRequests(cfg)
			if test.qps == 0 {
				if cfg.QPS != -1 || cfg.RateLimiter != nil {
					t.Errorf("requests are limited by config %+v", cfg)
				}
				return
			}
			if cfg.RateLimiter == nil || cfg.RateLimiter.QPS() != test.qps {
				t.Fatalf("requests are not limited to %v per second by config %+v", test.qps, cfg)
			}
			shared, accepted := rest.CopyConfig(cfg).RateLimiter, 0
			for shared.TryAccept() {
				accepted++
			}
			if accepted != test.burst || cfg.RateLimiter.TryAccept() {
				t.Errorf("got a burst of %d requests, want %d for all copies of the config", accepted, test.burst)
			}
		})
	}
}

func TestHelp_GroupsFlagsInSections(t *testing.T) {
	var out bytes.Buffer
	cmd := newCommand("dynamic-controller")
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"run", "--help"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	help := out.String()
	for _, want := range []string{
		"Cluster flags:", "--kubeconfig FILE", "Platform flags:", "--allow-platform-identity", "--default-service-account " +
			"NAME",
		"Reconciling flags:", "--workers NUMBER", "Leader election flags:", "--leader-elect-lease-duration duration",
		"Endpoint flags:", "--metrics-bind-address ADDRESS", "--webhook-bind-address ADDRESS", "Logging flags:",
		"-v, --v LEVEL", "--vmodule PATTERN=LEVEL", "Configuration flags:", "--config FILE",
		"Collections=true|false (BETA - default=true)",
	} {
		before, after, found := strings.Cut(help, want)
		if !found {
			t.Errorf("the help has no %[2]q after %[1]q:\n%[3]s", strings.TrimSpace(before[max(0, len(before)-20):]), want, help)
			continue
		}
		help = after
	}
	if strings.Contains(out.String(), "[]") {
		t.Error("the help shows Go values")
	}
}
