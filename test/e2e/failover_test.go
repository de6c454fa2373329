package e2e

import (
	"testing"
	"time"
)

// longerThanLease is the duration of a fault that makes the leader lose its lease.
const longerThanLease = leaseDuration + time.Second

// Each subtest injects one fault into the leader of three replicas. There must never be two leaders, the fence must
// reject writes from former leaders, and no change must be missed.
func TestL1_L2_L3_EveryLeaderFault(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			if fault.name != "API server restart" { // A restart of the API server would disturb parallel tests.
				t.Parallel()
			}
			f := newFleet(t)
			leader := f.awaitReconciles(leaseName)
			since := f.recordFault("%s: %s", fault.name, leader.processName())
			fault.inject(f, target{leader, leaseName}, longerThanLease)
			next := f.awaitLeader(leaseName, since)
			t.Logf("the leader was %s and is now %s", leader.name, next.name)
			f.awaitReconciles(leaseName)
			report := f.finish()
			if report.Terms < 2 || report.Handlers < objectCount || report.Rejected == 0 {
				t.Errorf("too few terms, handler calls or rejected writes: %s", report)
			}
		})
	}
}
