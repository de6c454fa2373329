package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
)

// rule returns a rule of a role. Verbs and resources are comma-separated.
func rule(verbs, group, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		Verbs: strings.Split(verbs, ","), APIGroups: []string{group}, Resources: strings.Split(resources, ","),
		ResourceNames: names,
	}
}

// everything returns a rule that permits all requests to resources.
func everything() rbacv1.PolicyRule {
	return rule(rbacv1.VerbAll, rbacv1.APIGroupAll, rbacv1.ResourceAll)
}

// writeChildren lists the verbs that a ServiceAccount needs on the children of instances.
const writeChildren = "get,create,patch,delete"

// account creates a ServiceAccount with the permissions for the duration of the test. It returns a kubeconfig with its
// token.
func (a *api) account(name string, rules ...rbacv1.PolicyRule) (kubeconfig string) {
	a.Helper()
	ctx := a.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err1 := a.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(ctx, account, metav1.CreateOptions{})
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	_, err2 := a.kube.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, err3 := a.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: name}},
	}, metav1.CreateOptions{})
	token, err4 := a.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			a.Fatal(err)
		}
	}
	a.Cleanup(func() {
		ctx := context.WithoutCancel(a.Context())
		for _, err := range []error{
			a.kube.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			a.kube.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}),
			a.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{}),
		} {
			if err != nil {
				a.Error(err)
			}
		}
	})
	a.waitAccess(metav1.NamespaceDefault, name, "", true, rules...)
	cfg := a.cluster.Config()
	return writeKubeconfig(a.T, &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData,
		CertificateAuthority: cfg.CAFile}, token.Status.Token)
}

func writeKubeconfig(t *testing.T, server *clientcmdapi.Cluster, token string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = server
	config.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	config.CurrentContext = "it"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// waitAccess waits until the API server grants or denies a ServiceAccount the permissions of the rules in a namespace.
// The API server reads roles from a cache, so changes take effect with a delay.
func (a *api) waitAccess(namespace, name, in string, allowed bool, rules ...rbacv1.PolicyRule) {
	a.Helper()
	for _, r := range rules {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: serviceaccount.MakeUsername(namespace, name),
		}}
		if len(r.NonResourceURLs) > 0 {
			review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{
				Verb: r.Verbs[0], Path: r.NonResourceURLs[0],
			}
		} else {
			resource, subresource, _ := strings.Cut(r.Resources[0], "/")
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
				Namespace: in, Verb: r.Verbs[0], Group: r.APIGroups[0], Resource: resource, Subresource: subresource,
				Name: strings.Join(r.ResourceNames, ","),
			}
		}
		eventually(a.T, func() error {
			answer, err := a.kube.AuthorizationV1().SubjectAccessReviews().Create(a.Context(), review, metav1.CreateOptions{})
			if err == nil && answer.Status.Allowed != allowed {
				err = fmt.Errorf("access is %t, want %t: %+v", answer.Status.Allowed, allowed, review.Spec)
			}
			return err
		})
	}
}

// grant grants the permissions in a namespace to a ServiceAccount, and returns a function that revokes them.
func (a *api) grant(namespace, toNamespace, toName string, rules ...rbacv1.PolicyRule) (revoke func()) {
	a.Helper()
	role, err := a.kube.RbacV1().Roles(namespace).Create(a.Context(),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	_, err = a.kube.RbacV1().RoleBindings(namespace).Create(a.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: toNamespace, Name: toName}},
	}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	a.waitAccess(toNamespace, toName, namespace, true, rules...)
	return func() {
		a.Helper()
		if err := a.kube.RbacV1().RoleBindings(namespace).Delete(a.Context(), role.Name, metav1.DeleteOptions{}); err != nil {
			a.Fatal(err)
		}
		a.waitAccess(toNamespace, toName, namespace, false, rules...)
	}
}

// serviceAccount creates a ServiceAccount with permissions in its namespace and allows the platform to impersonate it.
// It returns the user name.
func (a *api) serviceAccount(namespace, name string, rules ...rbacv1.PolicyRule) string {
	a.Helper()
	_, err := a.kube.CoreV1().ServiceAccounts(namespace).Create(a.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	a.grant(namespace, metav1.NamespaceDefault, a.platformName(), rule("get,impersonate", "", "serviceaccounts", name))
	if len(rules) > 0 {
		a.grant(namespace, namespace, name, rules...)
	}
	return serviceaccount.MakeUsername(namespace, name)
}

// consent sets the Blueprints that can use a ServiceAccount.
func (a *api) consent(namespace, name string, blueprints ...string) {
	a.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, identity.AllowedBlueprints, strings.Join(blueprints, ","))
	_, err := a.kube.CoreV1().ServiceAccounts(namespace).Patch(a.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	if err != nil {
		a.Fatal(err)
	}
}

// as returns an api that acts as a new ServiceAccount with only these permissions.
func (a *api) as(name string, rules ...rbacv1.PolicyRule) *api {
	a.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", a.account(a.namespace+"-"+name, rules...))
	if err != nil {
		a.Fatal(err)
	}
	other := *a
	if other.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		a.Fatal(err)
	}
	return &other
}

// author returns an api that can only write Blueprints.
func (a *api) author() *api {
	a.Helper()
	return a.as("author", rule("*", "platform.example.com", "blueprints"))
}

// tenant returns an api that can only write instances and ConfigMaps in the test's namespace.
func (a *api) tenant() *api {
	a.Helper()
	tenant := a.as("tenant")
	a.grant(a.namespace, metav1.NamespaceDefault, a.namespace+"-tenant", rule("*", a.group, "*"),
		rule("*", "", "configmaps"))
	return tenant
}
