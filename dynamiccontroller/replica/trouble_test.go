package replica

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// namespaceTerminating is what the NamespaceLifecycle admission plugin returns.
func namespaceTerminating() error {
	err := apierrors.NewForbidden(leases, "test", errors.New("unable to create new content in namespace default because it is being terminated"))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: corev1.NamespaceTerminatingCause, Message: "namespace default is being terminated", Field: "metadata.namespace",
	})
	return err
}

func TestANamespaceThatIsBeingDeletedIsNotReportedAsMissingPermission(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"it is terminating": {namespaceTerminating(), "because it is being terminated"},
		"it is gone":        {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default"), "namespaces"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newRig(t, &server{}, "a")
				a.lease.set(func(_ context.Context, verb string, do func() error) error {
					if verb == verbCreate {
						return c.err
					}
					return do()
				})
				a.start()
				time.Sleep(time.Minute)
				if a.log.count("Permission missing") != 0 || a.log.count(c.says) != 1 || a.log.count("answered again") != 0 {
					t.Errorf("the log says\n%s", a.log)
				}
				a.lease.heal()
				time.Sleep(time.Second)
				if !a.Status().Leading || a.log.count("answered again") != 1 {
					t.Errorf("status %+v, and the log says\n%s", a.Status(), a.log)
				}
				wantNoError(t, a.stop())
			})
		})
	}
}

// The namespace lifecycle is checked only after the request was authorized.
func TestAPermissionWasGrantedIfOnlyTheNamespaceIsBeingDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &server{}, "a")
		refuse := func(refusal error) {
			a.lease.set(func(_ context.Context, verb string, do func() error) error {
				if verb == verbCreate {
					return refusal
				}
				return do()
			})
		}
		refuse(apierrors.NewForbidden(leases, "test", errors.New("no RBAC policy matched")))
		a.start()
		time.Sleep(time.Second)
		refuse(namespaceTerminating())
		time.Sleep(time.Minute)
		if a.log.count("Permission missing") != 1 || a.log.count("Permission granted") != 1 {
			t.Errorf("the log says\n%s", a.log)
		}
		wantNoError(t, a.stop())
	})
}

func TestAForbiddenReleaseIsNotRetried(t *testing.T) {
	for _, verb := range []string{verbGet, verbUpdate} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a := newRig(t, s, "a", realistic).start()
				time.Sleep(time.Second)
				before := a.lease.requests.Load()
				a.lease.set(func(_ context.Context, v string, do func() error) error {
					if v == verb {
						return apierrors.NewForbidden(leases, "test", errors.New("no RBAC policy matched"))
					}
					return do()
				})
				began := time.Now()
				wantNoError(t, a.stop())
				if took := time.Since(began); took > 0 {
					t.Errorf("it took %s", took)
				}
				if n := a.lease.requests.Load() - before; n > 2 {
					t.Errorf("%d requests", n)
				}
				if got := s.now().HolderIdentity; !strings.HasPrefix(got, "a_") {
					t.Errorf("the lease is held by %q", got)
				}
				var line string
				for _, l := range a.log.all {
					if strings.Contains(l, "Lease not released") {
						line = l
					}
				}
				for _, word := range []string{`"error"="`, "no RBAC policy matched", `"verb"="` + verb + `"`, `"resource"="leases.coordination.k8s.io"`} {
					if !strings.Contains(line, word) {
						t.Errorf("%q is not logged:\n%s", word, a.log)
					}
				}
			})
		})
	}
}

func TestAReleaseThatFailsForAnotherReasonIsRetried(t *testing.T) {
	for name, err := range map[string]error{
		"the API server cannot be reached": errors.New("connection refused"),
		"the token has expired":            apierrors.NewUnauthorized("expired"), // client-go reads the next one from its file
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a := newRig(t, s, "a").start()
				time.Sleep(time.Second)
				n := 0
				a.lease.set(func(_ context.Context, _ string, do func() error) error {
					if n++; n < 4 {
						return err
					}
					return do()
				})
				wantNoError(t, a.stop())
				if got := s.now(); !released(&got) {
					t.Errorf("the lease is %+v", got)
				}
			})
		})
	}
}
