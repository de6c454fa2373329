package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/zap/zapcore"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	logsjson "k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
)

const (
	formatJSON = logsapi.JSONLogFormat
	formatText = logsapi.DefaultLogFormat
	// formatConsole is an alias for formatText.
	formatConsole = "console"
	// maxVerbosity is the highest verbosity that fits into zap's levels.
	maxVerbosity = 127
)

// registerJSON registers the JSON format. Only the first call has an effect, because a format can be registered only
// once.
var registerJSON = sync.OnceValue(func() error {
	return logsapi.RegisterLogFormat(formatJSON, jsonFormat{}, logsapi.LoggingStableOptions)
})

// newLogger returns a logger that writes one line per message to w, in a format of Kubernetes components. It also
// configures klog, so that client-go uses the same format and verbosity. It can be called once in a process.
func newLogger(w io.Writer, c logsapi.LoggingConfiguration) (logr.Logger, error) {
	if err := registerJSON(); err != nil {
		return logr.Discard(), fmt.Errorf("register the log format: %w", err)
	}
	logsapi.SetRecommendedLoggingConfiguration(&c)
	options := logsapi.LoggingOptions{ErrorStream: w, InfoStream: w}
	if err := logsapi.ValidateAndApplyWithOptions(&c, &options, nil); err != nil {
		return logr.Discard(), fmt.Errorf("configure the log: %w", err)
	}
	klog.StopFlushDaemon() // nothing is buffered
	log := klog.Background()
	klog.SetLoggerWithOptions(log.WithName("client-go"), klog.ContextualLogger(true))
	return log, nil
}

// jsonFormat is the JSON format of Kubernetes components, with the additional key level.
type jsonFormat struct{}

// Feature implements [logsapi.LogFormatFactory].
func (jsonFormat) Feature() featuregate.Feature { return logsapi.LoggingStableOptions }

// Create implements [logsapi.LogFormatFactory].
func (jsonFormat) Create(
	c logsapi.LoggingConfiguration, o logsapi.LoggingOptions,
) (logr.Logger, logsapi.RuntimeControl) {
	return logsjson.NewJSONLogger(c.Verbosity, zapcore.Lock(zapcore.AddSync(o.ErrorStream)), nil, &zapcore.EncoderConfig{
		TimeKey: "ts", LevelKey: "level", NameKey: "logger", CallerKey: "caller", MessageKey: "msg",
		EncodeTime: func(t time.Time, enc zapcore.PrimitiveArrayEncoder) {
			enc.AppendFloat64(float64(t.UnixNano()) / float64(time.Millisecond))
		},
		EncodeLevel: func(level zapcore.Level, enc zapcore.PrimitiveArrayEncoder) {
			zapcore.LowercaseLevelEncoder(max(level, zapcore.DebugLevel), enc) // zap has no names for lower levels
		},
		EncodeDuration: zapcore.StringDurationEncoder, EncodeCaller: zapcore.ShortCallerEncoder,
	})
}

// warningLogger logs warnings from the API server, for example about deprecated versions. It logs at V(1), because the
// API server can send a warning with each response.
type warningLogger struct{}

func (warningLogger) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	logr.FromContextOrDiscard(ctx).V(1).Info("Warning from the API server", "warning", text)
}
