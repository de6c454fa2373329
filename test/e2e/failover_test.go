package e2e

import (
	"testing"
	"time"
)

// longerThanLease is how long a fault lasts that costs a leader its lease.
const longerThanLease = leaseDuration + time.Second

// Three replicas, a fault of the leader's at a time: no two lead at once, the fence holds, and nothing is missed.
func TestL1_L2_L3_EachFaultOfTheLeader(t *testing.T) {
	for _, each := range faults {
		t.Run(each.name, func(t *testing.T) {
			if each.name != "API server restart" { // which all others would notice
				t.Parallel()
			}
			f := newFleet(t)
			leader := f.atWork()
			since := f.fault("%s: %s", each.name, leader.who())
			each.strike(f, leader, longerThanLease)
			next := f.awaitLeader(since)
			t.Logf("%s led, %s leads", leader.name, next.name)
			f.atWork()
			report := f.finish()
			if report.Terms < 2 || report.Handlers < objectCount || report.Refused == 0 {
				t.Errorf("too little has happened: %s", report)
			}
		})
	}
}
