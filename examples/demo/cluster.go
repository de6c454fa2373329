package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/test/cluster"
)

// demoCluster is the cluster used by the demonstration, with administrator clients.
type demoCluster struct {
	kubeconfig string // the value of KUBECONFIG for this cluster
	namespace  string // the namespace of the platform's lease
	crds       clientset.Interface
	kube       kubernetes.Interface
	dynamic    dynamic.Interface
	own        *cluster.Cluster // nil if the demonstration did not start the cluster
	applied    bool             // the Blueprint was applied and has to be deleted
	ownCRD     bool             // the type Blueprint has to be deleted
	ownLease   bool             // the lease has to be deleted
}

// ownNamespace is the platform's namespace on a temporary control plane. It is the one that the examples require.
const ownNamespace = "dynamic-controller-system"

// openCluster connects to the cluster in KUBECONFIG, or starts one if KUBECONFIG is not set.
func openCluster(ctx context.Context, say printf, namespace string) (_ *demoCluster, err error) {
	c := &demoCluster{namespace: namespace, kubeconfig: os.Getenv(clientcmd.RecommendedConfigPathEnvVar)}
	var cfg *rest.Config
	if c.kubeconfig != "" {
		say("using the cluster from KUBECONFIG=%s", c.kubeconfig)
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
		if clientcmd.IsEmptyConfig(err) {
			err = errors.New("the file is missing or empty")
		}
		if err != nil {
			return nil, fmt.Errorf("KUBECONFIG=%s: %w", c.kubeconfig, err)
		}
		cfg.QPS = -1
	} else {
		say("starting a control plane: kube-apiserver and etcd")
		c.own, err = cluster.Start(ctx, cluster.Options{WithControllers: true})
		if err != nil {
			return nil, err
		}
		c.kubeconfig, cfg = c.own.Kubeconfig(), c.own.Config()
		c.namespace = cmp.Or(namespace, ownNamespace)
	}
	c.namespace = cmp.Or(c.namespace, metav1.NamespaceSystem)
	if err := c.connect(ctx, say, cfg); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *demoCluster) connect(ctx context.Context, say printf, cfg *rest.Config) (err error) {
	if c.crds, err = clientset.NewForConfig(cfg); err != nil {
		return err
	}
	if c.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return err
	}
	const timeout = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version, err := c.crds.Discovery().ServerVersionWithContext(ctx)
	if err != nil {
		return fmt.Errorf("connect to the cluster at %s: %w", cfg.Host, err)
	}
	say("kube-apiserver %s is ready at %s", version.GitVersion, cfg.Host)
	if c.own == nil {
		return c.checkUnused(ctx)
	}
	_, err = c.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// checkUnused returns an error if the cluster has Blueprints. The platform would serve them too.
func (c *demoCluster) checkUnused(ctx context.Context) error {
	crds := c.crds.ApiextensionsV1().CustomResourceDefinitions()
	_, err := crds.Get(ctx, crdName, metav1.GetOptions{})
	if err := notFound(err); err != nil {
		return fmt.Errorf("the type %s may be left over from an earlier demonstration: %w", crdName, err)
	}
	_, err = crds.Get(ctx, blueprintsCRD, metav1.GetOptions{})
	if c.ownCRD = apierrors.IsNotFound(err); c.ownCRD {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := c.in(blueprints).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(all.Items) > 0 {
		return fmt.Errorf("the cluster has %d Blueprints from another platform or an earlier demonstration", len(all.Items))
	}
	return nil
}

// close stops the cluster if the demonstration started it. Otherwise, it deletes the Blueprint and everything that was
// created for it. It also deletes the lease and the Blueprint type if the demonstration's replicas created them.
func (c *demoCluster) close() error {
	if c.own != nil {
		return c.own.Stop()
	}
	const timeout = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var errs []error
	if c.ownLease {
		err := c.kube.CoordinationV1().Leases(c.namespace).Delete(ctx, leaseName, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete the lease: %w", err))
		}
	}
	if c.applied {
		errs = append(errs, c.deleteAll(ctx))
	}
	if c.ownCRD {
		errs = append(errs, c.deleteType(ctx, blueprintsCRD))
	}
	return errors.Join(errs...)
}

// deleteAll deletes the Blueprint and its instances if the demonstration has not done so. The platform is no longer
// running, so deleteAll also removes the finalizers of the platform.
func (c *demoCluster) deleteAll(ctx context.Context) error {
	noFinalizers := []byte(`{"metadata":{"finalizers":null}}`)
	_, err := c.in(blueprints).Patch(ctx, blueprintName, types.MergePatchType, noFinalizers, metav1.PatchOptions{})
	if err == nil {
		err = c.in(blueprints).Delete(ctx, blueprintName, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the Blueprint: %w", err)
	}
	list, err := c.in(webapps).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, webApp := range list.Items {
			_, patchErr := c.in(webapps).Patch(ctx, webApp.GetName(), types.MergePatchType, noFinalizers, metav1.PatchOptions{})
			err = errors.Join(err, patchErr)
		}
	}
	foreground := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}
	if err == nil {
		err = c.in(webapps).DeleteCollection(ctx, foreground, metav1.ListOptions{})
	}
	if err == nil {
		err = waitFor(ctx, condition{"the WebApps are deleted", func(ctx context.Context) error {
			list, err := c.in(webapps).List(ctx, metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d WebApps exist", len(list.Items))
			}
			return err
		}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the WebApps: %w", err)
	}
	return c.deleteType(ctx, crdName)
}

func (c *demoCluster) deleteType(ctx context.Context, name string) error {
	err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, name, metav1.DeleteOptions{})
	if err == nil {
		err = waitFor(ctx, c.typeDeleted(name))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the type %s: %w", name, err)
	}
	return nil
}
