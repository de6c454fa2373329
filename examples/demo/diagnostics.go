package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

// operator is the name of a ServiceAccount that can read the diagnostics.
const operator = "operator"

// diagnostics is the self-signed certificate that the replicas use to serve their diagnostics.
type diagnostics struct{ certFile, keyFile string }

// newDiagnostics writes the certificate and its key to files next to the log.
func newDiagnostics(log string) (*diagnostics, error) {
	base := strings.TrimSuffix(log, filepath.Ext(log))
	d := &diagnostics{certFile: base + ".crt", keyFile: base + ".key"}
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("create a certificate for the diagnostics: %w", err)
	}
	const public, private = 0o644, 0o600
	return d, errors.Join(os.WriteFile(d.certFile, certificate, public), os.WriteFile(d.keyFile, key, private))
}

// flags make a replica serve its diagnostics on a free port.
func (d *diagnostics) flags() []string {
	return []string{
		"--metrics-bind-address=127.0.0.1:0", "--tls-cert-file=" + d.certFile, "--tls-private-key-file=" + d.keyFile,
	}
}

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

// help returns commands that read the diagnostics of the replicas.
func (d *diagnostics) help(p *processes, leader string) string {
	var help strings.Builder
	fmt.Fprintf(&help, "\n  TOKEN=$(kubectl create token %s -n %s)\n", operator, p.namespace)
	add := func(command, replica, comment string) {
		if address := diagnosticsAddress(p.byName[replica].log); address != "" {
			fmt.Fprintf(&help, "  bin/dynamic-controller %s --url https://%s --certificate-authority %s --token $TOKEN   # %s\n",
				command, address, d.certFile, comment)
		}
	}
	add("status", leader, leader+", which leads")
	add("ui", leader, "the same as a page")
	for _, name := range p.names {
		if name != leader {
			add("status", name, name+", which is a standby replica")
		}
	}
	return help.String()
}

// diagnosticsAddress returns the address in a replica's log, or "" if the replica does not serve its diagnostics yet.
func diagnosticsAddress(log *logFile) (address string) {
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, line := range log.lines {
		var entry struct{ Endpoint, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Endpoint == "metrics-bind-address" {
			address = entry.Address
		}
	}
	return address
}
