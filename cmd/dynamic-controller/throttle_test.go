package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// All clients of a replica share the limit, except for the client for the Lease. Without renewals, the Lease would
// expire within five seconds.
func TestThrottling_DoesNotDelayTheLease(t *testing.T) {
	const qps, burst = 20, 20
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	requests := func() (throttled, lease int) {
		for _, c := range proxy.Calls() {
			switch {
			case c.Resource == "leases":
				lease++
			case c.Verb != "watch": // client-go does not limit watches
				throttled++
			}
		}
		return throttled, lease
	}
	began := time.Now()
	p := startServing(t, kubeconfig, fmt.Sprintf("--%s=%d", flagQPS, qps), fmt.Sprintf("--%s=%d", flagBurst, burst),
		"--leader-elect-lease-duration=8s", "--leader-elect-renew-deadline=5s", "--leader-elect-retry-period=500ms")
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
	t.Logf("%d requests and %d requests for the Lease in %s", throttled, after, took)
	if most := burst + int(qps*took.Seconds()) + 1; throttled > most {
		t.Errorf("got %d requests in %s, want at most %d", throttled, took, most)
	}
	if after-before < 3 {
		t.Errorf("got %d renewals of the Lease while requests were throttled", after-before)
	}
	if lost := p.logged(line{Msg: "Lease lost"}); len(lost) > 0 {
		t.Errorf("the Lease was lost: %+v", lost)
	}
}
