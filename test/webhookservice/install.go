package webhookservice

import (
	"context"
	"errors"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Install creates the objects of install/kustomize/webhook that the API server requires to call the webhook at a port
// on the loopback address. All of them have the given name. The timeout is in seconds.
func Install(ctx context.Context, kube kubernetes.Interface, namespace, name string, port, timeout int32) error {
	_, err1 := kube.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	configs := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err2 := configs.Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "blueprints.platform.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
				Namespace: namespace, Name: name, Path: ptr.To("/validate-blueprints"), Port: ptr.To(port),
			}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{
					admissionregistrationv1.Create, admissionregistrationv1.Update,
				},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"platform.example.com"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"blueprints"},
				},
			}},
			FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To(timeout),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	return errors.Join(err1, err2)
}

// Uninstall deletes the objects of Install, and the Secret with the certificate.
func Uninstall(ctx context.Context, kube kubernetes.Interface, namespace, name string) error {
	var errs []error
	for _, err := range []error{
		kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, name, metav1.DeleteOptions{}),
		kube.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{}),
		kube.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
