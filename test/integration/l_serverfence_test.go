package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

const (
	fencedAccount = "a-platform"
	fencedTenant  = "a-tenant" // whom the platform impersonates
)

// serverFence is an installed policy, and the ServiceAccount whose writes it fences.
type serverFence struct {
	h       *harness
	options serverfence.Options
	config  *rest.Config // authenticates as the ServiceAccount
}

// fenceOnServer creates a ServiceAccount with only the documented permissions, and the policy for it.
func (h *harness) fenceOnServer(shards int, resources ...schema.GroupResource) *serverFence {
	h.Helper()
	f := &serverFence{h: h, options: serverfence.Options{
		Name: h.namespace + "-fence", LeaseNamespace: h.namespace, LeaseName: leaseName, Shards: shards, Resources: resources,
		Username: "system:serviceaccount:" + h.namespace + ":" + fencedAccount,
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: fencedAccount}}
	_, err := h.clients.CoreV1().ServiceAccounts(h.namespace).Create(h.Context(), account, metav1.CreateOptions{})
	h.noError(err)
	token, err := h.clients.CoreV1().ServiceAccounts(h.namespace).CreateToken(h.Context(), fencedAccount,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	h.noError(err)
	f.config = rest.AnonymousClientConfig(h.config)
	f.config.BearerToken = token.Status.Token

	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: fencedAccount}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps", "events"}, Verbs: []string{"*"}},
		{
			APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, ResourceNames: []string{fencedAccount},
			Verbs: []string{"impersonate"},
		},
	}}
	_, err = h.clients.RbacV1().Roles(h.namespace).Create(h.Context(), role, metav1.CreateOptions{})
	h.noError(err)
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: fencedAccount, Namespace: h.namespace}}
	tenant := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: fencedTenant}
	_, err = h.clients.RbacV1().RoleBindings(h.namespace).Create(h.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: fencedAccount}, Subjects: append(subjects, tenant),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: fencedAccount},
	}, metav1.CreateOptions{})
	h.noError(err)
	extras := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: f.options.Name}, Rules: []rbacv1.PolicyRule{
		{
			APIGroups: []string{"authentication.k8s.io"}, Verbs: []string{"impersonate"},
			Resources: []string{"userextras/" + serverfence.LeaseExtra, "userextras/" + serverfence.HolderExtra},
		},
		{
			APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{fencedTenant},
			Verbs: []string{"impersonate"},
		},
	}}
	_, err = h.clients.RbacV1().ClusterRoles().Create(h.Context(), extras, metav1.CreateOptions{})
	h.noError(err)
	_, err = h.clients.RbacV1().ClusterRoleBindings().Create(h.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: f.options.Name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: f.options.Name},
	}, metav1.CreateOptions{})
	h.noError(err)

	policy, binding, err := serverfence.Objects(f.options)
	h.noError(err)
	admission := h.clients.AdmissionregistrationV1()
	_, err = admission.ValidatingAdmissionPolicies().Create(h.Context(), policy, metav1.CreateOptions{})
	h.noError(err)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(h.Context(), binding, metav1.CreateOptions{})
	h.noError(err)
	h.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		h.noError(errors.Join(
			admission.ValidatingAdmissionPolicyBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}),
			admission.ValidatingAdmissionPolicies().Delete(ctx, policy.Name, metav1.DeleteOptions{}),
			h.clients.RbacV1().ClusterRoleBindings().Delete(ctx, f.options.Name, metav1.DeleteOptions{}),
			h.clients.RbacV1().ClusterRoles().Delete(ctx, f.options.Name, metav1.DeleteOptions{}),
		))
	})
	return f
}

// keepLeasesAsParameters installs a policy that applies to nothing, and never deletes it. Without a binding that has
// Leases as parameters, the API server would stop to watch them, and would not start again (see package serverfence).
func (h *harness) keepLeasesAsParameters() {
	h.Helper()
	policy, binding, err := serverfence.Objects(serverfence.Options{
		Name: "leases-as-parameters", LeaseNamespace: "none", LeaseName: "none", Username: "none",
	})
	h.noError(err)
	admission := h.clients.AdmissionregistrationV1()
	_, err = admission.ValidatingAdmissionPolicies().Create(h.Context(), policy, metav1.CreateOptions{})
	h.noError(ignoreAlreadyExists(err))
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(h.Context(), binding, metav1.CreateOptions{})
	h.noError(ignoreAlreadyExists(err))
}

func ignoreAlreadyExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// setAction sets what the API server does with a write that the policy rejects.
func (f *serverFence) setAction(action admissionregistrationv1.ValidationAction) {
	f.h.Helper()
	bindings := f.h.clients.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	binding, err := bindings.Get(f.h.Context(), f.options.Name, metav1.GetOptions{})
	f.h.noError(err)
	binding.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{action}
	_, err = bindings.Update(f.h.Context(), binding, metav1.UpdateOptions{})
	f.h.noError(err)
}

// waitUntilEnforced waits until the API server enforces the policy. The Lease must exist.
func (f *serverFence) waitUntilEnforced() {
	f.h.Helper()
	f.h.eventually("the policy is enforced", func() error {
		return serverfence.Probe(f.h.Context(), f.config, f.options)
	})
}

// late returns a function that creates a ConfigMap as a write that was sent earlier, and has just arrived.
func (f *serverFence) late(lease, holder string) func() error {
	return f.lateAs(f.options.Username, lease, holder)
}

// lateAs is like late, for a write that impersonates a user.
func (f *serverFence) lateAs(user, lease, holder string) func() error {
	cfg := rest.CopyConfig(f.config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Extra: map[string][]string{
		serverfence.LeaseExtra: {f.options.LeaseNamespace + "/" + lease}, serverfence.HolderExtra: {holder},
	}}
	return f.creator(cfg)
}

// creator returns a function that creates a ConfigMap.
func (f *serverFence) creator(cfg *rest.Config) func() error {
	client := must(kubernetes.NewForConfig(cfg)).CoreV1().ConfigMaps(f.h.namespace)
	return func() error { return createIn(f.h.Context(), client) }
}

type configMapCreator interface {
	Create(context.Context, *corev1.ConfigMap, metav1.CreateOptions) (*corev1.ConfigMap, error)
}

func createIn(ctx context.Context, client configMapCreator) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}}
	_, err := client.Create(ctx, object, metav1.CreateOptions{})
	return err
}

func isDenied(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), serverfence.Denied)
}

// wantDenied waits until the write is denied. It returns the time at which the last admitted one was sent, as the time
// since the call.
func (f *serverFence) wantDenied(situation string, write func() error) (admitted time.Duration) {
	f.h.Helper()
	began := time.Now()
	f.h.eventually(situation, func() error {
		sent := time.Since(began)
		err := write()
		switch {
		case err == nil:
			admitted = sent
			return errors.New("a write was admitted")
		case isDenied(err):
			return nil
		default:
			return err
		}
	})
	return admitted
}

func TestServerFence_LateWritesAreRejected(t *testing.T) {
	h := newHarness(t)
	h.keepLeasesAsParameters()
	f := h.fenceOnServer(1)
	other := *h
	other.config = f.config
	a := other.member("a")
	write := f.creator(a.FenceOnServer(f.config, f.options.Username))
	if err := write(); !errors.Is(err, replica.ErrNotLeading) {
		t.Errorf("before the first term: %v", err)
	}
	a.start().waitForStart(1)
	f.waitUntilEnforced()
	h.noError(write())
	asTenant := rest.CopyConfig(f.config)
	asTenant.Impersonate.UserName = fencedTenant
	h.noError(f.creator(asTenant)()) // the tenant's own writes
	h.noError(f.creator(a.FenceOnServer(asTenant, ""))())
	f.wantDenied("late writes on behalf of a tenant", f.lateAs(fencedTenant, leaseName, "another"))

	f.wantDenied("writes without the fields", f.creator(f.config))
	f.wantDenied("writes for another lease", f.late("another", a.Status().Identity))
	h.noError(f.creator(h.config)()) // another user's
	events := must(kubernetes.NewForConfig(f.config)).CoreV1().Events(h.namespace)
	_, err := events.Create(h.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: h.namespace},
	}, metav1.CreateOptions{})
	h.noError(err)

	var lags []time.Duration
	for range 3 {
		late, term := f.late(leaseName, a.Status().Identity), a.Status().Term
		h.noError(late())
		h.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("another") })
		lags = append(lags, f.wantDenied("writes of the former leader", late))
		h.editLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("") })
		h.eventually("the replica leads again", func() error {
			if s := a.Status(); !s.Leading || s.Term == term {
				return fmt.Errorf("got %+v", s)
			}
			return nil
		})
		h.eventually("the writes of the new term are admitted", write)
	}
	t.Logf("late writes were admitted until %v after the changes of the lease", lags)
	h.noError(a.stop())
	f.wantDenied("writes after the lease was released", f.late(leaseName, a.Status().Identity))
}

// The documented way to switch the fence off and on again, with another holder in between. No other policy keeps the
// API server watching Leases.
func TestServerFence_CanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	h, _ := newRestorable(t)
	f := h.fenceOnServer(1)
	other := *h
	other.config = f.config
	a := other.member("a").start()
	a.waitForStart(1)
	f.waitUntilEnforced()
	f.setAction(admissionregistrationv1.Audit)
	late := f.late(leaseName, a.Status().Identity+"-before")
	h.eventually("late writes are admitted", late)
	h.noError(a.stop())
	b := other.member("b").start()
	b.waitForStart(1)
	f.setAction(admissionregistrationv1.Deny)
	f.waitUntilEnforced()
	f.wantDenied("late writes", f.late(leaseName, a.Status().Identity))
	h.noError(f.late(leaseName, b.Status().Identity)())
	h.noError(b.stop())
}

// While the lease is missing, the API server does not reject the writes of all users.
func TestServerFence_MissingLeaseDoesNotAffectOtherUsers(t *testing.T) {
	h := newHarness(t)
	h.keepLeasesAsParameters()
	f := h.fenceOnServer(8)
	other := *h
	other.config = f.config
	a := other.member("a").start()
	a.waitForStart(1)
	f.waitUntilEnforced()
	h.noError(a.stop())
	h.noError(h.clients.CoordinationV1().Leases(h.namespace).Delete(h.Context(), leaseName, metav1.DeleteOptions{}))
	h.eventually("the API server observes that the lease is missing", func() error {
		if err := serverfence.Probe(h.Context(), f.config, f.options); !errors.Is(err, serverfence.ErrNotEnforced) {
			return fmt.Errorf("got error %w", err)
		}
		return nil
	})
	for range 20 {
		h.noError(f.creator(h.config)())
	}
}

func TestServerFence_EachShardIsFenced(t *testing.T) {
	h := newHarness(t)
	h.keepLeasesAsParameters()
	f := h.fenceOnServer(32, schema.GroupResource{Group: "example.com", Resource: "widgets"}) // and ConfigMaps
	o := replicaOptions(h, "a")
	o.Shards = 2
	a := must(replica.New(h.logger().WithName("a"), f.config, o))
	client := must(kubernetes.NewForConfig(a.FenceOnServer(f.config, f.options.Username))).CoreV1().ConfigMaps(h.namespace)
	results, enforced := make(chan string, 10), make(chan struct{})
	write := func(name string) replica.RunFunc {
		return func(ctx context.Context) error {
			index, _ := replica.Shard(ctx)
			for range 2 { // before and after the policy is enforced
				if err := createIn(ctx, client); err != nil {
					return err
				}
				results <- fmt.Sprintf("%s %d", name, index)
				select {
				case <-enforced:
				case <-ctx.Done():
				}
			}
			<-ctx.Done()
			return nil
		}
	}
	h.noError(errors.Join(
		a.Register("fleet", write("fleet"), replica.ScopeLeader),
		a.Register("shard", write("shard"), replica.ScopeShard)))
	stop := h.start(a.Run)
	wantWrites := func(when string) {
		h.Helper()
		var got []string
		h.eventually("writes "+when, func() error {
			for len(got) < 3 {
				select {
				case name := <-results:
					got = append(got, name)
				default:
					return fmt.Errorf("only %v have written", got)
				}
			}
			return nil
		})
		slices.Sort(got)
		if want := []string{"fleet 0", "shard 0", "shard 1"}; !slices.Equal(got, want) {
			t.Errorf("got writes of %v, want %v", got, want)
		}
	}
	wantWrites("at the start")
	f.waitUntilEnforced()
	close(enforced)
	wantWrites("with the policy")

	identity := a.Status().Identity
	for _, lease := range []string{leaseName, leaseName + "-shard-0", leaseName + "-shard-1"} {
		h.noError(f.late(lease, identity)())
		f.wantDenied("writes of another holder", f.late(lease, "another"))
	}
	f.wantDenied("writes for another lease", f.late("another", identity))
	f.wantDenied("writes without the fields", f.creator(f.config))
	leases := h.clients.CoordinationV1().Leases(h.namespace)
	h.eventually("edit the lease of a shard", func() error {
		lease, err := leases.Get(h.Context(), leaseName+"-shard-1", metav1.GetOptions{})
		h.noError(err)
		lease.Spec.HolderIdentity = ptr.To("another")
		_, err = leases.Update(h.Context(), lease, metav1.UpdateOptions{})
		return err
	})
	f.wantDenied("late writes of shard 1", f.late(leaseName+"-shard-1", identity))
	h.noError(f.late(leaseName+"-shard-0", identity)())
	h.noError(stop())
}
