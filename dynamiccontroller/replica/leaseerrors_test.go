package replica

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	logRequestFailed     = "Lease request failed, will retry"
	logRecovered         = "Lease requests succeed again"
	logPermissionMissing = "Permission missing, this replica cannot lead"
	logPermissionGranted = "Permission granted"

	logCredentialsRejected = "Credentials rejected, this replica cannot lead"
	logCredentialsAccepted = "Credentials accepted"
)

func forbidden() error {
	return apierrors.NewForbidden(leases, "test", errors.New("no RBAC policy matched"))
}

// namespaceTerminating returns the error that the NamespaceLifecycle admission plugin returns.
func namespaceTerminating() error {
	reason := errors.New("unable to create new content in namespace default because it is being terminated")
	err := apierrors.NewForbidden(leases, "test", reason)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: corev1.NamespaceTerminatingCause, Message: "namespace default is being terminated", Field: "metadata.namespace",
	})
	return err
}

// isLeading returns a condition for eventually.
func (r *rig) isLeading() func() bool { return func() bool { return r.Status().Leading } }

func TestLeaseErrors_FailureAndRecoveryAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a")
		a.lease.disconnect()
		a.start()
		for i := range 2 {
			time.Sleep(time.Hour)
			a.wantLog(i+1, logRequestFailed)
			if a.log.count("connection refused") < i+1 {
				t.Errorf("the log does not contain the error:\n%s", a.log)
			}
			a.lease.reconnect()
			time.Sleep(time.Minute)
			a.wantLog(i+1, logRecovered)
			a.lease.disconnect()
		}
		a.crash()
	})
}

func TestLeaseErrors_MissingPermissionIsLoggedOnce(t *testing.T) {
	for _, verb := range []string{verbGet, verbCreate, verbUpdate} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				if verb == verbUpdate {
					s.set(&record{HolderIdentity: "other", LeaseDurationSeconds: 3})
				}
				a := newRig(t, s, "a")
				a.lease.reject(verb, forbidden())
				a.start()
				time.Sleep(time.Minute)
				a.wantLog(1, logPermissionMissing)
				a.wantLine(logPermissionMissing, `"error"="`, `"verb"="`+verb+`"`,
					`"resource"="leases.coordination.k8s.io"`, `"lease"="default/test"`)
				a.lease.reconnect()
				eventually(t, testLeaseDuration+maxAcquire, a.isLeading())
				a.wantLog(1, logPermissionGranted)
				wantNoError(t, a.stop())
			})
		})
	}
}

// A token can expire although all permissions are granted.
func TestLeaseErrors_RejectedCredentialsAreNotAMissingPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a")
		a.lease.disconnect() // the log does not show only the first failure of a series
		a.start()
		time.Sleep(time.Minute)
		for _, after := range []func(){
			a.lease.reconnect,
			func() { a.lease.reject(verbGet, forbidden()) },
		} {
			a.lease.intercept(func(context.Context, string, func() error) error {
				return apierrors.NewUnauthorized("expired")
			})
			time.Sleep(time.Minute)
			a.wantLog(0, logPermissionMissing)
			a.wantLine(logCredentialsRejected, `"error"="expired"`, `"verb"="`, `"lease"="default/test"`)
			after()
			time.Sleep(time.Minute)
		}
		a.wantLog(2, logCredentialsRejected) // once for each series
		a.wantLog(2, logCredentialsAccepted)
		a.wantLog(1, logPermissionMissing)
		a.crash()
	})
}

func TestLeaseErrors_MissingNamespaceIsNotAMissingPermission(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string // in the log
	}{
		"terminating": {namespaceTerminating(), "because it is being terminated"},
		"deleted":     {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default"), "namespaces"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newRig(t, &fakeServer{}, "a")
				a.lease.reject(verbCreate, test.err)
				a.start()
				time.Sleep(time.Minute)
				a.wantLog(0, logPermissionMissing)
				a.wantLog(1, test.want)
				a.wantLog(0, logRecovered)
				a.lease.reconnect()
				eventually(t, maxAcquire, a.isLeading())
				a.wantLog(1, logRecovered)
				wantNoError(t, a.stop())
			})
		})
	}
}

// The API server checks the namespace after it has authorized the request.
func TestLeaseErrors_TerminatingNamespaceImpliesPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a")
		a.lease.reject(verbCreate, forbidden())
		a.start()
		time.Sleep(time.Second)
		a.lease.reject(verbCreate, namespaceTerminating())
		time.Sleep(time.Minute)
		a.wantLog(1, logPermissionMissing)
		a.wantLog(1, logPermissionGranted)
		wantNoError(t, a.stop())
	})
}

// A request that is rejected has not succeeded, so it does not end a series of failures with a message about recovery.
func TestLeaseErrors_RejectionIsNotRecovery(t *testing.T) {
	for name, rejection := range map[string]error{
		"credentials": apierrors.NewUnauthorized("expired"), "permission": forbidden(),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newRig(t, &fakeServer{}, "a")
				a.lease.disconnect()
				a.start()
				time.Sleep(time.Minute)
				a.wantLog(1, logRequestFailed)
				a.lease.reject(verbGet, rejection)
				time.Sleep(time.Minute)
				a.wantLog(0, logRecovered)
				a.lease.reconnect()
				time.Sleep(time.Minute)
				wantNoError(t, a.stop())
			})
		})
	}
}

func TestRelease_IsNotRetriedIfForbidden(t *testing.T) {
	for _, verb := range []string{verbGet, verbUpdate} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a := newRig(t, s, "a", defaultDurations).start()
				time.Sleep(time.Second)
				before := a.lease.requests.Load()
				a.lease.reject(verb, forbidden())
				began := time.Now()
				wantNoError(t, a.stop())
				if took := time.Since(began); took > 0 {
					t.Errorf("Run returned after %s", took)
				}
				if n := a.lease.requests.Load() - before; n > 2 {
					t.Errorf("%d requests", n)
				}
				wantHolder(t, s, "a")
				a.wantLine("Lease not released", `"error"="`, "no RBAC policy matched", `"verb"="`+verb+`"`,
					`"resource"="leases.coordination.k8s.io"`)
			})
		})
	}
}

func TestRelease_IsRetriedAfterOtherErrors(t *testing.T) {
	for name, err := range map[string]error{
		"API server unreachable": errors.New("connection refused"),
		"expired token":          apierrors.NewUnauthorized("expired"), // client-go reads the next token from its file
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a := newRig(t, s, "a").start()
				time.Sleep(time.Second)
				n := 0
				a.lease.intercept(func(_ context.Context, _ string, send func() error) error {
					if n++; n < 4 {
						return err
					}
					return send()
				})
				wantNoError(t, a.stop())
				wantReleased(t, s)
			})
		})
	}
}
