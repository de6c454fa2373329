package replica

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

func TestOptionsThatCannotWorkAreRefusedByFieldAndValue(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		says   []string
	}{
		"a lease without a name":               {func(o *Options) { o.LeaseName = "" }, []string{"Options.LeaseName", "required"}},
		"a name that is no name":               {func(o *Options) { o.LeaseName = "My_Lease" }, []string{"Options.LeaseName My_Lease"}},
		"a namespace that is no name":          {func(o *Options) { o.LeaseNamespace = "a.b" }, []string{"Options.LeaseNamespace a.b"}},
		"a label that is none":                 {func(o *Options) { o.Labels = map[string]string{"a b": "c"} }, []string{"Options.Labels"}},
		"a duration that a Lease cannot store": {func(o *Options) { o.LeaseDuration = 15500 * time.Millisecond }, []string{"Options.LeaseDuration 15.5s", "whole seconds"}},
		"a lease that leaves no room to renew": {func(o *Options) { o.LeaseDuration = 13 * time.Second },
			[]string{"Options.LeaseDuration 13s", "RenewDeadline 10s", "RetryPeriod 2s", "1.3s", "13.3s"}},
		"a lease of a second": {func(o *Options) {
			o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = time.Second, 500*time.Millisecond, 100*time.Millisecond
		}, []string{"Options.LeaseDuration 1s", "at least 2s"}},
		"a deadline that allows no second try": {func(o *Options) { o.RenewDeadline = 2 * time.Second }, []string{"Options.RenewDeadline 2s", "2.4s"}},
		"a negative retry period":              {func(o *Options) { o.RetryPeriod = -1 }, []string{"Options.RetryPeriod -1ns"}},
		"a retry period that spins": {func(o *Options) { o.RetryPeriod = 99 * time.Millisecond },
			[]string{"Options.RetryPeriod 99ms", "at least 100ms"}},
		"a negative shutdown timeout": {func(o *Options) { o.ShutdownTimeout = -1 }, []string{"Options.ShutdownTimeout -1ns"}},
		"a policy that there is not":  {func(o *Options) { o.OnLostLease, o.OnFailure = 7, 8 }, []string{"Options.OnLostLease 7", "Options.OnFailure 8"}},
		"several at once":             {func(o *Options) { o.LeaseName, o.RetryPeriod = "", -1 }, []string{"LeaseName", "RetryPeriod"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{LeaseName: "a"}
			c.change(&o)
			_, err := New(&rest.Config{}, o)
			wantSays(t, err, c.says...)
		})
	}
	_, err := New(nil, Options{})
	wantSays(t, err, "cfg must not be nil", "LeaseName")
}

func TestOptionsThatMustWorkDo(t *testing.T) {
	for name, o := range map[string]Options{
		"the defaults":     {LeaseName: "a"},
		"quick ones":       {LeaseName: "a", LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 500 * time.Millisecond},
		"without election": {LeaderElection: ptr.To(false)},
	} {
		if _, err := New(&rest.Config{}, o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDefaultsComeFromWhereTheProcessRuns(t *testing.T) {
	t.Setenv("POD_NAME", "pod-1")
	t.Setenv("POD_NAMESPACE", "here")
	o, err := Options{}.withDefaults()
	wantNoError(t, err)
	if !regexp.MustCompile(`^pod-1_[0-9a-f-]{36}$`).MatchString(o.Identity) || o.LeaseNamespace != "here" {
		t.Errorf("identity %s, namespace %s", o.Identity, o.LeaseNamespace)
	}
	t.Setenv("POD_NAME", "")
	t.Setenv("POD_NAMESPACE", "")
	host, err := os.Hostname()
	wantNoError(t, err)
	if o, _ := (Options{}).withDefaults(); !strings.HasPrefix(o.Identity, host+"_") {
		t.Errorf("identity %s on host %s", o.Identity, host)
	}
	file := filepath.Join(t.TempDir(), "namespace")
	if ns := namespaceHere(file); ns != "kube-system" {
		t.Errorf("without a file: %s", ns)
	}
	wantNoError(t, os.WriteFile(file, []byte("mounted\n"), 0o600))
	if ns := namespaceHere(file); ns != "mounted" {
		t.Errorf("with a file: %s", ns)
	}
}
