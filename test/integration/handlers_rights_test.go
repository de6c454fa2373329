package integration

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A process that has the rights that the parts say they need, and those to watch, and no others, serves a parent's whole life.
func TestHandlers_TheRightsThatAreSaidSuffice(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	user := "platform-" + h.namespace
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{
		rule(s.parents.Group, s.parents.Resource, "get", "patch", "list", "watch"),
		rule(s.parents.Group, s.parents.Resource+"/status", "patch"),
		rule(s.gadgets.Group, s.gadgets.Resource, "get", "list", "watch", "create", "patch", "delete"),
		rule("", "configmaps", "get", "list", "watch", "create", "patch", "delete"),
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
	}
	rbac := h.clients.RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	h.noError(err)
	_, err = rbac.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	h.noError(err)
	t.Cleanup(func() {
		h.noError(rbac.ClusterRoleBindings().Delete(context.Background(), user, metav1.DeleteOptions{}))
		h.noError(rbac.ClusterRoles().Delete(context.Background(), user, metav1.DeleteOptions{}))
	})
	own := *h
	own.config = rest.CopyConfig(h.config)
	own.config.Impersonate = rest.ImpersonationConfig{UserName: user}
	mine := *s
	mine.harness = &own
	l := &lifetime{setting: &mine, far: h.newNamespace(), buckets: map[string]bool{}}
	l.live(newMortal(0, false), 0)
}
