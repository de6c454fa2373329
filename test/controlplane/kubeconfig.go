package main

import (
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig writes the administrator's kubeconfig into the directory, and to another file if one is named. Keys
// and certificates are in it, so that it can be copied.
func (d dir) writeKubeconfig(server, also string) error {
	const name = "controlplane"
	config := clientcmdapi.NewConfig()
	ca, err := os.ReadFile(d.cert(clusterCA))
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(d.cert(adminCert))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(d.key(adminCert))
	if err != nil {
		return err
	}
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	for _, path := range []string{d.kubeconfig(), also} {
		if path == "" {
			continue
		}
		if err := writeWhole(path, data); err != nil {
			return fmt.Errorf("kubeconfig %s cannot be written: %w", path, err)
		}
	}
	return nil
}

// adminConfig is the administrator's, without client-side throttling.
func (d dir) adminConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", d.kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}
