package e2e

import (
	"errors"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

// fenceOnServer makes the API server reject late writes of the replicas. The policy is not deleted, because API servers
// would stop watching Leases; see package serverfence.
func (f *fleet) fenceOnServer() {
	f.Helper()
	f.username, f.rules.ServerDelay = "replica-in-"+f.namespace, serverDelay
	policy, binding, err := serverfence.Objects(serverfence.Options{
		Name: f.namespace, LeaseNamespace: f.namespace, LeaseName: leaseName, Username: f.username, Shards: f.shards,
		Resources: []schema.GroupResource{{Group: "*", Resource: "*"}},
	})
	f.noError(err)
	admission := f.clients.AdmissionregistrationV1()
	_, errPolicy := admission.ValidatingAdmissionPolicies().Create(f.Context(), policy, metav1.CreateOptions{})
	_, errBinding := admission.ValidatingAdmissionPolicyBindings().Create(f.Context(), binding, metav1.CreateOptions{})
	_, err = f.clients.RbacV1().RoleBindings(f.namespace).Create(f.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "replica"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: f.username}},
	}, metav1.CreateOptions{})
	f.noError(errors.Join(errPolicy, errBinding, err))
}
