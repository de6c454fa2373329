package typewatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A change of the type's schema or of its conversion can change metadata at the same version. If another watch takes over before
// the current one has noticed, the change is in the difference between the two caches.
func TestD1_HandoverReportsMetadataThatChangedAtTheSameVersion(t *testing.T) {
	for name, test := range map[string]struct {
		from, to Depth
	}{
		"to a deeper watch":    {Metadata, Full},
		"to a shallower watch": {Full, Metadata},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.put("a")
				s.put("b")
				p := newTestPool(s)
				n, e := p.Acquire(wantDepth(Metadata)), &ear{}
				n.Attach(e.sink())
				deepest := p.Acquire(wantDepth(test.from))
				runs(p, func() {
					e.take()
					s.setLabel("a", "new")
					other := p.Acquire(wantDepth(test.to))
					release(deepest)
					time.Sleep(time.Minute)
					if diff := cmp.Diff([]string{"ns/a 1>1"}, e.take()); diff != "" {
						t.Error(diff)
					}
					release(other)
				})
				release(n)
			})
		})
	}
}

func release(n *Need) {
	n.Release()
	n.Leave(nil)
}
