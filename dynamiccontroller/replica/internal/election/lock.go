package election

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// FromLock returns the record as client-go's locks read it.
func FromLock(r resourcelock.LeaderElectionRecord) Record {
	return Record{
		Holder: r.HolderIdentity, Duration: time.Duration(r.LeaseDurationSeconds) * time.Second,
		Acquired: r.AcquireTime.Time, Renewed: r.RenewTime.Time, Transitions: r.LeaderTransitions,
	}
}

// Lock returns the record as client-go's locks write it.
func (r Record) Lock() resourcelock.LeaderElectionRecord {
	return resourcelock.LeaderElectionRecord{
		HolderIdentity: r.Holder, LeaseDurationSeconds: int(r.Duration / time.Second),
		AcquireTime: metav1.NewTime(r.Acquired), RenewTime: metav1.NewTime(r.Renewed), LeaderTransitions: r.Transitions,
	}
}
