package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
)

func TestThrottleFlags(t *testing.T) {
	for args, test := range map[string]struct {
		qps     float32 // 0 for no limit
		burst   int
		wantErr string
	}{
		"":                                      {},
		"--kube-api-qps=20":                     {qps: 20, burst: 40},
		"--kube-api-qps=20 --kube-api-burst=30": {qps: 20, burst: 30},
		"--kube-api-qps=0.2":                    {qps: 0.2, burst: 1},
		"--kube-api-qps=-1":                     {wantErr: "--kube-api-qps must not be negative"},
		"--kube-api-qps=1 --kube-api-burst=-1":  {wantErr: "--kube-api-burst must not be negative"},
		"--kube-api-burst=1":                    {wantErr: "--kube-api-burst has no effect without --kube-api-qps"},
	} {
		t.Run(args, func(t *testing.T) {
			var o options
			cmd := &cobra.Command{RunE: func(*cobra.Command, []string) error { return nil }}
			o.addFlags(cmd)
			cmd.SetArgs(strings.Fields(args))
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			cfg := &rest.Config{}
			err := o.throttle.apply(cfg)
			switch {
			case test.wantErr != "":
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("got the error %v, want %q", err, test.wantErr)
				}
				return
			case err != nil:
				t.Fatal(err)
			case test.qps == 0:
				if cfg.QPS != -1 || cfg.RateLimiter != nil {
					t.Errorf("requests are limited: %+v", cfg)
				}
				return
			case cfg.RateLimiter == nil || cfg.RateLimiter.QPS() != test.qps:
				t.Fatalf("requests are not limited to %v per second: %+v", test.qps, cfg)
			}
			shared, taken := rest.CopyConfig(cfg).RateLimiter, 0
			for shared.TryAccept() {
				taken++
			}
			if taken != test.burst || cfg.RateLimiter.TryAccept() {
				t.Errorf("%d requests were admitted at once, want %d for all copies of the config together", taken, test.burst)
			}
		})
	}
}

// All clients of a replica share the limit. The lease is renewed meanwhile, or it would be lost within two seconds.
func TestAThrottledReplicaKeepsItsLease(t *testing.T) {
	const qps, burst = 5, 10
	a := newAPI(t)
	kubeconfig, proxy := a.watched()
	requests := func() (throttled, lease int) {
		for _, c := range proxy.Calls() {
			switch {
			case c.Resource == "leases":
				lease++
			case c.Verb != "watch": // client-go does not limit those
				throttled++
			}
		}
		return throttled, lease
	}
	began := time.Now()
	p := startServing(t, kubeconfig, fmt.Sprintf("--%s=%d", flagQPS, qps), fmt.Sprintf("--%s=%d", flagBurst, burst))
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	_, before := requests()
	for i := range 10 {
		a.apply(strings.ReplaceAll(flowers, "flowers", fmt.Sprint("flowers-", i)))
	}
	for i := range 10 {
		a.wait("GROUP/v1", "Website", fmt.Sprint("flowers-", i), is("Ready", "True"))
	}
	throttled, after := requests()
	took := time.Since(began)
	t.Logf("%d requests and %d for the lease in %s", throttled, after, took)
	if most := burst + int(qps*took.Seconds()) + 1; throttled > most {
		t.Errorf("%d requests in %s, want at most %d", throttled, took, most)
	}
	if after-before < 3 {
		t.Errorf("the lease was renewed %d times while requests were throttled", after-before)
	}
	if lost := p.logged(line{Msg: "lease is lost"}); len(lost) > 0 {
		t.Errorf("the lease was lost: %+v", lost)
	}
}
