package replica

import (
	"context"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/internal/lastwrites"
)

// lastWritesAnnotation is the annotation of a released Lease that contains the last writes of its last holder; see
// package lastwrites. A Lease that is held does not have it.
const lastWritesAnnotation = "dynamic-controller.github.io/last-writes"

// maxNote is the maximum length of the annotation in bytes. The API server limits all annotations together to 256 KiB,
// and the replicas of a fleet watch all Leases. Without the annotation, the next leader does not wait.
const maxNote = 32 << 10

// noteIn returns a client for a Lease that passes on the last writes of its holder to the next one. If writes is nil,
// it returns the given client.
func noteIn(
	client coordinationclient.LeasesGetter, o Options, log logr.Logger, writes *lastWrites,
) coordinationclient.LeasesGetter {
	if writes == nil {
		return client
	}
	return &notedLeases{LeasesGetter: client, identity: o.Identity, writes: writes, log: log}
}

// notedLeases is a client for a Lease. It stores the last writes in a Lease that it releases, and observes
// those in a Lease that another replica has released.
type notedLeases struct {
	coordinationclient.LeasesGetter
	identity string
	writes   *lastWrites
	log      logr.Logger
}

func (n *notedLeases) Leases(namespace string) coordinationclient.LeaseInterface {
	return &notedLease{n.LeasesGetter.Leases(namespace), n}
}

type notedLease struct {
	coordinationclient.LeaseInterface
	leases *notedLeases
}

func (l *notedLease) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, o)
	if err == nil {
		l.leases.observe(lease)
	}
	return lease, err
}

func (l *notedLease) Update(
	ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	delete(lease.Annotations, lastWritesAnnotation)
	if isFree(lease) {
		if note := l.leases.writes.recent().String(); note != "" && len(note) <= maxNote {
			metav1.SetMetaDataAnnotation(&lease.ObjectMeta, lastWritesAnnotation, note)
		}
	}
	return l.LeaseInterface.Update(ctx, lease, o)
}

func isFree(lease *coordinationv1.Lease) bool { return ptr.Deref(lease.Spec.HolderIdentity, "") == "" }

// observe replaces the last writes by those of the last holder, unless this replica holds the Lease. Then, it has
// observed them before it acquired the Lease. A holder that crashed has left none.
func (n *notedLeases) observe(lease *coordinationv1.Lease) {
	var found lastwrites.Versions
	switch {
	case isFree(lease):
		var err error
		if found, err = lastwrites.Parse(lease.Annotations[lastWritesAnnotation]); err != nil {
			n.log.V(1).Info("Ignoring an annotation of the Lease", keyError, err.Error())
		}
	case *lease.Spec.HolderIdentity == n.identity:
		return
	}
	n.writes.replace(found)
}
