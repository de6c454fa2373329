package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

const (
	fenced       = "bench-fence" // the name of the policy, the namespace and the lease
	fencedUser   = "bench-fenced"
	fencedHolder = "bench-holder"
)

// BenchmarkServerFence measures what the policy of package serverfence costs for a create, with the given number of
// Leases, and for how long an API server admits late writes: the one through which the Lease was changed, and another
// one. The creates without a policy are measured twice.
func BenchmarkServerFence(b *testing.B) {
	cluster := shared.Cluster(b)
	cfg := cluster.Config()
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	for _, leases := range []int{0, 0, 1, 64, 256} {
		b.Run(fmt.Sprintf("create/leases=%d", leases), func(b *testing.B) {
			benchmarkCreate(b, cfg, clients, leases, false)
		})
		b.Run(fmt.Sprintf("create-of-another-user/leases=%d", leases), func(b *testing.B) {
			benchmarkCreate(b, cfg, clients, leases, true)
		})
	}
	b.Run("handover", func(b *testing.B) { benchmarkHandover(b, cfg, cfg, clients) })
	b.Run("handover-observed-by-another-server", func(b *testing.B) {
		another, err := cluster.AddAPIServer(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := another.Stop(); err != nil {
				b.Error(err)
			}
		})
		benchmarkHandover(b, cfg, another.Config(), clients)
	})
}

func benchmarkCreate(b *testing.B, cfg *rest.Config, clients kubernetes.Interface, leases int, other bool) {
	write := fencedWriter(b, cfg)
	if other {
		write = writer(b, cfg)
	}
	allowWrites(b, clients)
	if leases > 0 {
		installFence(b, cfg, clients, leases)
	}
	for b.Loop() {
		if err := write(); err != nil {
			b.Fatal(err)
		}
	}
}

// benchmarkHandover changes the holder of the Lease, and writes through the other API server as the former one until a
// write is rejected, and then as the new one until a write is admitted.
func benchmarkHandover(b *testing.B, cfg, writes *rest.Config, clients kubernetes.Interface) {
	write := fencedWriter(b, writes)
	allowWrites(b, clients)
	installFence(b, writes, clients, 1)
	var late, first []time.Duration
	setHolder := func(holder string) time.Time {
		patch := []byte(fmt.Sprintf(`{"spec":{"holderIdentity":%q}}`, holder))
		_, err := clients.CoordinationV1().Leases(fenced).Patch(b.Context(), fenced, types.MergePatchType, patch,
			metav1.PatchOptions{})
		if err != nil {
			b.Fatal(err)
		}
		return time.Now()
	}
	admitted := 0
	for b.Loop() {
		changed, latest := setHolder("another"), time.Duration(0)
		for err := write(); !isDenied(err); err = write() {
			if err != nil {
				b.Fatal(err)
			}
			admitted++
			latest = time.Since(changed)
		}
		late = append(late, latest)
		changed = setHolder(fencedHolder)
		for err := write(); err != nil; err = write() {
			if !isDenied(err) {
				b.Fatal(err)
			}
		}
		first = append(first, time.Since(changed))
	}
	for name, times := range map[string][]time.Duration{"late": late, "first": first} {
		slices.Sort(times)
		for suffix, t := range map[string]time.Duration{
			"p50": times[len(times)/2], "p99": times[len(times)*99/100], "max": times[len(times)-1],
		} {
			b.ReportMetric(float64(t.Microseconds())/1000, name+"-"+suffix+"-ms")
		}
	}
	b.ReportMetric(float64(admitted)/float64(len(late)), "late-writes/handover")
}

func isDenied(err error) bool { return err != nil && strings.Contains(err.Error(), serverfence.Denied) }

// fencedWriter returns a function that creates a ConfigMap as the writes of a fenced config do.
func fencedWriter(b *testing.B, cfg *rest.Config) func() error {
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: fencedUser, Extra: map[string][]string{
		serverfence.LeaseExtra: {fenced + "/" + fenced}, serverfence.HolderExtra: {fencedHolder},
	}}
	return writer(b, cfg)
}

// writer returns a function that creates a ConfigMap.
func writer(b *testing.B, cfg *rest.Config) func() error {
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return func() error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}}
		_, err := clients.CoreV1().ConfigMaps(fenced).Create(b.Context(), object, metav1.CreateOptions{})
		return err
	}
}

// allowWrites creates the namespace, and deletes the ConfigMaps in it afterwards.
func allowWrites(b *testing.B, clients kubernetes.Interface) {
	_, err := clients.CoreV1().Namespaces().Create(b.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fenced}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		b.Fatal(err)
	}
	_, err = clients.RbacV1().RoleBindings(fenced).Create(b.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: fenced},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: fencedUser}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		err := clients.CoreV1().ConfigMaps(fenced).DeleteCollection(context.Background(), metav1.DeleteOptions{},
			metav1.ListOptions{})
		if err != nil {
			b.Error(err)
		}
	})
}

// installFence installs the policy and the Leases, and waits until the API server of cfg enforces the policy.
func installFence(b *testing.B, cfg *rest.Config, clients kubernetes.Interface, shards int) {
	createPolicy(b, clients, serverfence.Options{ // never deleted: see "Removal" in package serverfence
		Name: fenced + "-kept", LeaseNamespace: "none", LeaseName: "none", Username: "none",
	})
	o := serverfence.Options{
		Name: fmt.Sprintf("%s-%d", fenced, shards), LeaseNamespace: fenced, LeaseName: fenced, Username: fencedUser,
		Shards: shards, Resources: []schema.GroupResource{{Group: "*", Resource: "*"}},
	}
	leases := clients.CoordinationV1().Leases(fenced)
	create := func(name string) {
		_, err := leases.Create(b.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{serverfence.Label: fenced},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(fencedHolder)},
		}, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
	}
	create(fenced)
	for i := range shards - 1 {
		create(fmt.Sprintf("%s-shard-%d", fenced, i))
	}
	createPolicy(b, clients, o)
	b.Cleanup(func() {
		ctx := context.Background()
		admission := clients.AdmissionregistrationV1()
		err := errors.Join(
			admission.ValidatingAdmissionPolicyBindings().Delete(ctx, o.Name, metav1.DeleteOptions{}),
			admission.ValidatingAdmissionPolicies().Delete(ctx, o.Name, metav1.DeleteOptions{}),
			leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		for err == nil && !errors.Is(serverfence.Probe(ctx, cfg, o), serverfence.ErrNotEnforced) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			b.Error(err)
		}
	})
	for err := serverfence.Probe(b.Context(), cfg, o); err != nil; err = serverfence.Probe(b.Context(), cfg, o) {
		if b.Context().Err() != nil {
			b.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// createPolicy creates the policy and its binding if they do not exist.
func createPolicy(b *testing.B, clients kubernetes.Interface, o serverfence.Options) {
	policy, binding, err := serverfence.Objects(o)
	if err != nil {
		b.Fatal(err)
	}
	admission := clients.AdmissionregistrationV1()
	_, err = admission.ValidatingAdmissionPolicies().Create(b.Context(), policy, metav1.CreateOptions{})
	if err == nil {
		_, err = admission.ValidatingAdmissionPolicyBindings().Create(b.Context(), binding, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		b.Fatal(err)
	}
}
