package replica

import (
	"context"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/internal/writes"
)

// maxNote is the maximum length of the annotation in bytes. The API server limits all annotations together to 256 KiB,
// and the replicas of a fleet watch all Leases.
const maxNote = 64 << 10

// noteIn returns a client for a Lease that passes on the writes in a ledger to the next holder. If the ledger is nil,
// noteIn returns the given client.
func noteIn(
	client coordinationclient.LeasesGetter, o Options, log logr.Logger, ledger *writes.Ledger,
) coordinationclient.LeasesGetter {
	if ledger == nil {
		return client
	}
	return &notedLeases{LeasesGetter: client, identity: o.Identity, ledger: ledger, log: log}
}

// notedLeases is a client for a Lease. It stores the writes of its ledger in a Lease that it releases. Its ledger takes
// over those in a Lease that another replica has released.
type notedLeases struct {
	coordinationclient.LeasesGetter
	identity string
	ledger   *writes.Ledger
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
	delete(lease.Annotations, writes.NoteAnnotation)
	if isFree(lease) {
		note, left := l.leases.ledger.Recent().Encode(maxNote)
		if note != "" {
			metav1.SetMetaDataAnnotation(&lease.ObjectMeta, writes.NoteAnnotation, note)
		}
		if left > 0 {
			l.leases.log.Info("The oldest of the last writes do not fit in the Lease. The next leader does not wait for them",
				keyCalls, left)
		}
	}
	return l.LeaseInterface.Update(ctx, lease, o)
}

func isFree(lease *coordinationv1.Lease) bool { return ptr.Deref(lease.Spec.HolderIdentity, "") == "" }

// observe replaces the writes of the ledger by those of the last holder, unless this replica holds the Lease. In that
// case, it has observed them before it acquired the Lease. A holder that crashed has left none.
func (n *notedLeases) observe(lease *coordinationv1.Lease) {
	var found writes.Note
	switch {
	case isFree(lease):
		var err error
		if found, err = writes.ParseNote(lease.Annotations[writes.NoteAnnotation]); err != nil {
			n.log.V(1).Info("Ignoring an annotation of the Lease", keyError, err.Error())
		}
	case *lease.Spec.HolderIdentity == n.identity:
		return
	}
	n.ledger.Replace(found)
}
