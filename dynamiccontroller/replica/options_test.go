package replica

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

func TestNew_RejectsInvalidOptions(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		want   []string // in the error
	}{
		"no LeaseName": {
			func(o *Options) { o.LeaseName = "" }, []string{"Options.LeaseName", "required"},
		},
		"invalid LeaseName": {
			func(o *Options) { o.LeaseName = "My_Lease" }, []string{"Options.LeaseName My_Lease"},
		},
		"invalid LeaseNamespace": {
			func(o *Options) { o.LeaseNamespace = "a.b" }, []string{"Options.LeaseNamespace a.b"},
		},
		"invalid label": {
			func(o *Options) { o.Labels = map[string]string{"a b": "c"} }, []string{"Options.Labels"},
		},
		"fraction of a second": {
			func(o *Options) { o.LeaseDuration = 15500 * time.Millisecond },
			[]string{"Options.LeaseDuration 15.5s", "whole seconds"},
		},
		"LeaseDuration too short": {
			func(o *Options) { o.LeaseDuration = 13 * time.Second },
			[]string{"Options.LeaseDuration 13s", "RenewDeadline 10s", "RetryPeriod 2s", "1.3s", "13.3s"},
		},
		"LeaseDuration of 1 s": {
			func(o *Options) {
				o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = time.Second, 500*time.Millisecond, 100*time.Millisecond
			},
			[]string{"Options.LeaseDuration 1s", "at least 2s"},
		},
		"RenewDeadline too short": {
			renewDeadline(2 * time.Second), []string{"Options.RenewDeadline 2s", "2.4s"},
		},
		"negative RetryPeriod": {
			func(o *Options) { o.RetryPeriod = -1 }, []string{"Options.RetryPeriod -1ns"},
		},
		"RetryPeriod too short": {
			func(o *Options) { o.RetryPeriod = 99 * time.Millisecond },
			[]string{"Options.RetryPeriod 99ms", "at least 100ms"},
		},
		"negative ShutdownTimeout": {
			func(o *Options) { o.ShutdownTimeout = -1 }, []string{"Options.ShutdownTimeout -1ns"},
		},
		"unknown policies": {
			func(o *Options) { o.OnLostLease, o.OnFailure = 7, 8 },
			[]string{"Options.OnLostLease 7", "Options.OnFailure 8"},
		},
		"more than one invalid": {
			func(o *Options) { o.LeaseName, o.RetryPeriod = "", -1 }, []string{"LeaseName", "RetryPeriod"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{LeaseName: "a"}
			test.change(&o)
			_, err := New(logr.Discard(), &rest.Config{}, o)
			wantErrorContains(t, err, test.want...)
		})
	}
	_, err := New(logr.Discard(), nil, Options{})
	wantErrorContains(t, err, "cfg must not be nil", "LeaseName")
}

func TestNew_AcceptsValidOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"defaults":           {LeaseName: "a"},
		"short durations":    testOptions(),
		"no leader election": {LeaderElection: ptr.To(false)},
	} {
		if _, err := New(logr.Discard(), &rest.Config{}, o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOptions_DefaultsDependOnTheEnvironment(t *testing.T) {
	t.Setenv("POD_NAME", "pod-1")
	t.Setenv("POD_NAMESPACE", "here")
	o, err := Options{}.withDefaults()
	wantNoError(t, err)
	if !regexp.MustCompile(`^pod-1_[0-9a-f-]{36}$`).MatchString(o.Identity) || o.LeaseNamespace != "here" {
		t.Errorf("identity %s, namespace %s; want pod-1 with a UID, and here", o.Identity, o.LeaseNamespace)
	}
	t.Setenv("POD_NAME", "")
	t.Setenv("POD_NAMESPACE", "")
	host, err := os.Hostname()
	wantNoError(t, err)
	if o, _ := (Options{}).withDefaults(); !strings.HasPrefix(o.Identity, host+"_") {
		t.Errorf("identity %s, want one that begins with the host name %s", o.Identity, host)
	}
	file := filepath.Join(t.TempDir(), "namespace")
	if ns := defaultNamespace(file); ns != "kube-system" {
		t.Errorf("namespace %s without a mounted file, want kube-system", ns)
	}
	wantNoError(t, os.WriteFile(file, []byte("mounted\n"), 0o600))
	if ns := defaultNamespace(file); ns != "mounted" {
		t.Errorf("namespace %s with a mounted file, want the one in the file", ns)
	}
}
