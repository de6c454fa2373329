package uninstall

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

// fakeLeases contains at most one Lease.
type fakeLeases struct {
	coordinationclient.LeaseInterface
	lease func() *coordinationv1.Lease // nil if the Lease does not exist
}

func (f fakeLeases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	if lease := f.lease(); lease != nil {
		return lease, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "l")
}

// fakeDefinitions contains the CustomResourceDefinition of Blueprints if exists is true.
type fakeDefinitions struct {
	apiextensionsclient.CustomResourceDefinitionInterface
	exists bool
}

func (f fakeDefinitions) Get(
	_ context.Context, name string, _ metav1.GetOptions,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	if !f.exists {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, name)
	}
	return &apiextensionsv1.CustomResourceDefinition{}, nil
}

const leaseDuration = 15 * time.Second

// heldSince returns a Lease that the holder last renewed the given time ago.
func heldSince(holder string, ago time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-ago))),
		LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)),
	}}
}

// newTest returns an uninstaller with the given Lease, which can change.
func newTest(lease func() *coordinationv1.Lease, defined bool) *uninstaller {
	return &uninstaller{
		Options: Options{
			LeaseNamespace: "system", LeaseName: "l", Apply: true, Out: io.Discard,
			LeaseDuration: leaseDuration, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		},
		leases: fakeLeases{lease: lease}, crds: fakeDefinitions{exists: defined},
	}
}

func always(lease *coordinationv1.Lease) func() *coordinationv1.Lease {
	return func() *coordinationv1.Lease { return lease }
}

func checkError(t *testing.T, err, is error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Errorf("got error %v", err)
	case text != "" && (err == nil || !strings.Contains(err.Error(), text)):
		t.Errorf("got error %v, want %q", err, text)
	case is != nil && !errors.Is(err, is):
		t.Errorf("got error %v, want %v", err, is)
	}
}

func TestWaitAcquired(t *testing.T) {
	const limit = leaseDuration + 16*time.Second
	for name, test := range map[string]struct {
		lease func() func() *coordinationv1.Lease
		wait  time.Duration
		err   error
		text  string
	}{
		"a crashed leader whose Lease cannot be acquired": {
			lease: func() func() *coordinationv1.Lease { return always(heldSince("pod_1", time.Second)) },
			wait:  limit, err: ErrRunning, text: "pod_1 holds the Lease system/l",
		},
		"a replica with a slow clock renews the Lease": {
			lease: func() func() *coordinationv1.Lease {
				return func() *coordinationv1.Lease { return heldSince("pod_1", time.Hour) }
			},
			wait: 500 * time.Millisecond, err: ErrRunning, text: "pod_1 holds the Lease system/l; scale the Deployment to 0",
		},
		"a standby acquires a released Lease": {
			lease: func() func() *coordinationv1.Lease {
				lease := heldSince("", 0)
				return func() *coordinationv1.Lease {
					before := lease
					lease = heldSince("pod_2", 0)
					return before
				}
			},
			wait: 500 * time.Millisecond, err: ErrRunning, text: "pod_2 holds",
		},
		"another uninstallation holds the Lease": {
			lease: func() func() *coordinationv1.Lease {
				return func() *coordinationv1.Lease { return heldSince(identity+"_1", 0) }
			},
			wait: limit, err: ErrRunning, text: identity + "_1 holds the Lease",
		},
		"a Lease that cannot be updated": {
			lease: func() func() *coordinationv1.Lease { return always(heldSince("", 0)) },
			wait:  limit, text: "could not be acquired: check the permission to update it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lease := test.lease()
				u := newTest(lease, true)
				began := time.Now()
				err := u.waitAcquired(t.Context(), lease(), make(chan struct{}))
				if took := time.Since(began); took != test.wait {
					t.Errorf("took %s, want %s", took, test.wait)
				}
				checkError(t, err, test.err, test.text)
			})
		})
	}
}

func TestWhileStopped_WorksWithoutHoldingTheLease(t *testing.T) {
	foreign := heldSince("", 0)
	foreign.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "n"}}
	for name, test := range map[string]struct {
		lease   *coordinationv1.Lease
		options func(*Options)
		defined bool
		text    string
	}{
		"a dry run while a replica holds the Lease": {
			lease: heldSince("pod_1", 0), options: func(o *Options) { o.Apply = false },
		},
		"no leader election": {lease: heldSince("pod_1", 0), options: func(o *Options) { o.LeaseName = "" }},
		"a missing Lease with Blueprints": {
			defined: true, text: "the Lease system/l does not exist: use the --namespace",
		},
		"a missing Lease without Blueprints": {},
		"a node's Lease":                     {lease: foreign, text: "belongs to another program"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newTest(always(test.lease), test.defined)
			if test.options != nil {
				test.options(&u.Options)
			}
			worked := false
			err := u.whileStopped(t.Context(), nil, func(context.Context) error {
				worked = true
				return nil
			})
			checkError(t, err, nil, test.text)
			if worked != (test.text == "") {
				t.Errorf("worked: %t", worked)
			}
		})
	}
}

// A replica that starts after the uninstallation has released the Lease keeps it.
func TestDeleteLease_KeepsLeaseOfReplica(t *testing.T) {
	checkError(t, newTest(always(heldSince("pod_2", 0)), false).deleteLease(t.Context()), ErrRunning, "pod_2 holds")
}
