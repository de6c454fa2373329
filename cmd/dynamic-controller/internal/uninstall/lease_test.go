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

// heldSince returns a Lease that the holder has last renewed the given time ago.
func heldSince(holder string, ago time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-ago))),
		LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)),
	}}
}

func TestCheckStopped(t *testing.T) {
	for name, test := range map[string]struct {
		lease   func() func() *coordinationv1.Lease
		options func(*Options)
		defined bool
		wait    time.Duration
		err     error
		text    string
	}{
		"a released Lease": {
			lease: func() func() *coordinationv1.Lease {
				l := heldSince("", 0)
				return func() *coordinationv1.Lease { return l }
			},
		},
		"a Lease that was not released long ago": {
			lease: func() func() *coordinationv1.Lease {
				l := heldSince("pod_1", 2*clockSkew)
				return func() *coordinationv1.Lease { return l }
			},
		},
		"a Lease that was not released by a crashed leader": {
			lease: func() func() *coordinationv1.Lease {
				l := heldSince("pod_1", time.Second)
				return func() *coordinationv1.Lease { return l }
			},
			wait: leaseDuration,
		},
		"a Lease that a replica with a slow clock renews": {
			lease: func() func() *coordinationv1.Lease {
				return func() *coordinationv1.Lease { return heldSince("pod_1", clockSkew) }
			},
			wait: 500 * time.Millisecond, err: ErrRunning, text: "pod_1 holds the Lease system/l; scale the Deployment to 0",
		},
		"a dry run while a replica holds the Lease": {
			lease: func() func() *coordinationv1.Lease {
				return func() *coordinationv1.Lease { return heldSince("pod_1", 0) }
			},
			options: func(o *Options) { o.Apply = false },
		},
		"a missing Lease with Blueprints": {
			lease:   func() func() *coordinationv1.Lease { return func() *coordinationv1.Lease { return nil } },
			defined: true, text: "the Lease system/l does not exist: use the --namespace",
		},
		"a missing Lease without Blueprints": {
			lease: func() func() *coordinationv1.Lease { return func() *coordinationv1.Lease { return nil } },
		},
		"no leader election": {
			lease: func() func() *coordinationv1.Lease {
				return func() *coordinationv1.Lease { return heldSince("pod_1", 0) }
			},
			options: func(o *Options) { o.LeaseName = "" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &uninstaller{
					Options: Options{LeaseNamespace: "system", LeaseName: "l", Apply: true, Out: io.Discard},
					leases:  fakeLeases{lease: test.lease()}, crds: fakeDefinitions{exists: test.defined},
				}
				if test.options != nil {
					test.options(&u.Options)
				}
				began := time.Now()
				err := u.checkStopped(t.Context())
				if took := time.Since(began); took != test.wait {
					t.Errorf("took %s, want %s", took, test.wait)
				}
				switch {
				case test.text == "" && err != nil:
					t.Errorf("got error %v", err)
				case test.text != "" && (err == nil || !strings.Contains(err.Error(), test.text)):
					t.Errorf("got error %v, want %q", err, test.text)
				case test.err != nil && !errors.Is(err, test.err):
					t.Errorf("got error %v, want %v", err, test.err)
				}
			})
		})
	}
}

// A replica that is started during the uninstallation stops it.
func TestCheckStillStopped(t *testing.T) {
	lease := heldSince("", 0)
	u := &uninstaller{
		Options: Options{LeaseNamespace: "system", LeaseName: "l", Apply: true, Out: io.Discard},
		leases:  fakeLeases{lease: func() *coordinationv1.Lease { return lease }},
	}
	if err := errors.Join(u.checkStopped(t.Context()), u.checkStillStopped(t.Context())); err != nil {
		t.Fatal(err)
	}
	lease = heldSince("pod_2", 0)
	if err := u.checkStillStopped(t.Context()); !errors.Is(err, ErrRunning) {
		t.Errorf("got error %v, want %v", err, ErrRunning)
	}
}
