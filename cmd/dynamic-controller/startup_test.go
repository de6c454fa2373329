package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// account creates a service account with the permissions until the test ends, and returns a kubeconfig with its token.
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

func TestStartup_UnusableClusterIsReportedInOneLine(t *testing.T) {
	a := newAPI(t)
	cfg := a.cluster.Config()
	for name, test := range map[string]struct {
		server clientcmdapi.Cluster
		token  string
		want   string
	}{
		"nothing listens": {
			clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}, "any",
			"connect to the cluster at https://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused",
		},
		"untrusted certificate": {
			clientcmdapi.Cluster{Server: cfg.Host}, "any",
			"certificate",
		},
		"invalid token": {
			clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData,
				CertificateAuthority: cfg.CAFile}, "wrong",
			"the server has asked for the client to provide credentials",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, runArgs(writeKubeconfig(t, &test.server, test.token))...)
			if code := p.wait(); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if got := p.output(); strings.Count(got, "\n") != 1 || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want one line with %q", got, test.want)
			}
		})
	}
}
