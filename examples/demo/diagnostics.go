package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// diagnosticsFlags make a replica serve its diagnostics on a free port.
var diagnosticsFlags = []string{"--metrics-bind-address=127.0.0.1:0"}

// operator is the name of a ServiceAccount that can read the diagnostics.
const operator = "operator"

// createOperator creates the operator and its permissions.
func (c *demoCluster) createOperator(ctx context.Context) error {
	meta := metav1.ObjectMeta{Name: operator}
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: c.namespace, Name: operator}
	_, err1 := c.kube.CoreV1().ServiceAccounts(c.namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	_, err2 := c.kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, NonResourceURLs: []string{"/status", "/ui", "/metrics", "/statusz", "/flagz"}},
			{Verbs: []string{"post"}, NonResourceURLs: []string{"/status/retry"}},
		},
	}, metav1.CreateOptions{})
	_, err3 := c.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{account},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: operator},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("create the ServiceAccount %s: %w", operator, err)
	}
	return nil
}

// diagnosticsHelp returns the commands that read the diagnostics of a replica. They are empty if the log of the replica
// does not contain the address.
func (c *demoCluster) diagnosticsHelp(log *logFile) string {
	address := diagnosticsAddress(log)
	if address == "" {
		return ""
	}
	replica := fmt.Sprintf("--url https://%s --insecure-skip-tls-verify --token $TOKEN", address)
	return fmt.Sprintf(`
  TOKEN=$(kubectl create token %s -n %s)
  bin/dynamic-controller status %s
  bin/dynamic-controller ui %s   # the same, as a page in the browser
`, operator, c.namespace, replica, replica)
}

// diagnosticsAddress returns the address in the log of a replica.
func diagnosticsAddress(log *logFile) (address string) {
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, line := range log.lines {
		var entry struct{ Msg, Endpoint, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Endpoint == "metrics-bind-address" {
			address = entry.Address
		}
	}
	return address
}
