package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
)

// Each line is an input, and the layout after it. A line that begins with "write" or "release" also has the holder that
// is written.
func TestLayoutMachine(t *testing.T) {
	for name, script := range map[string]string{
		"the first leader records its number": `
			missing           -> is not held by a fleet
			write             -> records 8 shards: shards=8/self
			fresh             -> 8
			fresh             -> 0
			release           -> records 8 shards: shards=8/
			write             -> records 8 shards: shards=8/self
			fresh             -> 0`,
		"a recorded number has precedence": `
			read shards=16/x  -> records 16 shards
			write             -> records 16 shards: shards=16/self
			fresh             -> 0`,
		"a replica without shards has no layout": `
			read shards=16/x  -> records 16 shards
			read plain        -> is not held by a fleet
			write             -> records 8 shards: shards=8/self`,
		"a number that another member has recorded meanwhile is not fresh": `
			write             -> records 8 shards: shards=8/self
			read shards=8/x   -> records 8 shards
			fresh             -> 0`,
		"a change is announced, allowed, and performed by the release": `
			write             -> records 8 shards: shards=8/self
			announce          -> records 8 shards
			write             -> announces another number of shards: shards=8,changing/self
			allow             -> announces another number of shards
			cancel            -> announces another number of shards
			write             -> announces another number of shards: shards=8,changing/self
			release           -> is not held by a fleet:
			end               -> is not held by a fleet
			write             -> records 8 shards: shards=8/self`,
		"a change is cancelled": `
			write             -> records 8 shards: shards=8/self
			announce          -> records 8 shards
			write             -> announces another number of shards: shards=8,changing/self
			cancel            -> announces another number of shards
			write             -> records 8 shards: shards=8/self`,
		"a leader that ends does not leave an announcement": `
			write             -> records 8 shards: shards=8/self
			announce          -> records 8 shards
			write             -> announces another number of shards: shards=8,changing/self
			release           -> records 8 shards: shards=8/`,
		"an announcement does not withdraw the permission": `
			write             -> records 8 shards: shards=8/self
			allow             -> records 8 shards
			announce          -> records 8 shards
			release           -> is not held by a fleet:`,
	} {
		t.Run(name, func(t *testing.T) {
			m := &layoutMachine{identity: "self", configured: 8}
			for line := range strings.Lines(strings.TrimSpace(script)) {
				input, want, _ := strings.Cut(strings.TrimSpace(line), "->")
				if got := playLayout(m, strings.Fields(input)); got != strings.TrimSpace(want) {
					t.Fatalf("%s: got %q", strings.TrimSpace(line), got)
				}
			}
		})
	}
}

// playLayout performs an input, and describes the result.
func playLayout(m *layoutMachine, input []string) string {
	written := ""
	write := func(leader string) {
		h, keeps := m.holderFor(leader)
		if written = ":"; !keeps {
			m.observeMissing()
			return
		}
		written += " " + h.String()
		m.wrote(h)
	}
	switch input[0] {
	case "missing":
		m.observeMissing()
	case "read":
		m.read(input[1])
	case "write":
		write(m.identity)
	case "release":
		write("")
	case "announce":
		m.announce()
	case "allow":
		m.allow()
	case "cancel":
		m.cancel()
	case "end":
		m.endTerm()
	case "fresh":
		count, _ := m.takeFresh()
		return fmt.Sprint(count)
	}
	return m.layout.String() + written
}

// A Lease of a shard that is missing, or was emptied, may have been led until a moment ago.
func TestFreeShards_OnlyReleasedOrExpiredLeasesAreFree(t *testing.T) {
	lease := func(version string, r election.Record) *coordinationv1.Lease {
		record := r.Lock()
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}, Spec: resourcelock.LeaderElectionRecordToLeaseSpec(&record),
		}
	}
	const d = 3 * time.Second
	now := time.Now()
	held := election.Record{Holder: "x", Duration: d, Acquired: now.Add(-time.Hour), Renewed: now}
	longer := held
	longer.Duration = 2 * d
	emptied := held
	emptied.Holder = ""
	for name, test := range map[string]struct {
		lease *coordinationv1.Lease
		after time.Duration // since it was first observed
		want  bool
	}{
		"released":                   {lease: lease("1", election.Record{}.Released(now)), want: true},
		"missing, first seen":        {lease: &coordinationv1.Lease{}},
		"missing for the duration":   {lease: &coordinationv1.Lease{}, after: d - time.Second},
		"missing for longer":         {lease: &coordinationv1.Lease{}, after: d + time.Second, want: true},
		"held":                       {lease: lease("1", held), after: d - time.Second},
		"expired":                    {lease: lease("1", held), after: d + time.Second, want: true},
		"renewed":                    {lease: lease("2", held), after: d + time.Second},
		"held for its own duration":  {lease: lease("1", longer), after: d + time.Second},
		"expired after its duration": {lease: lease("1", longer), after: 2*d + time.Second, want: true},
		"emptied, not released":      {lease: lease("1", emptied)},
		"emptied for longer":         {lease: lease("1", emptied), after: d + time.Second, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			free := newFreeShards(Config{LeaseDuration: d})
			if test.after > 0 {
				version := test.lease.ResourceVersion
				if version == "2" {
					version = "1"
				}
				free.seen[0] = seenLease{version, time.Now().Add(-test.after)}
			}
			if test.lease.Spec.LeaseDurationSeconds == nil {
				test.lease.Spec.LeaseDurationSeconds = ptr.To(int32(0))
			}
			if got := free.isFree(0, test.lease); got != test.want {
				t.Errorf("free: %t", got)
			}
		})
	}
}
