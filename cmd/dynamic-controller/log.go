package main

import (
	"context"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
)

const (
	formatJSON    = "json"
	formatConsole = "console"
)

// logOptions are what the command line says about the log.
type logOptions struct {
	format    string
	verbosity int
}

// logger returns a logger that writes a line at a time to w.
func (o logOptions) logger(w io.Writer) (logr.Logger, error) {
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoding.EncodeLevel = encodeLevel
	var encoder zapcore.Encoder
	switch o.format {
	case formatJSON:
		encoder = zapcore.NewJSONEncoder(encoding)
	case formatConsole:
		encoder = zapcore.NewConsoleEncoder(encoding)
	default:
		return logr.Logger{}, fmt.Errorf("%w, not %q", errFormat, o.format)
	}
	// logr's V(n) is zap's level -n.
	level := zapcore.Level(-min(max(o.verbosity, 0), 127))
	return zapr.NewLogger(zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level))), nil
}

// encodeLevel knows the levels that zap has no names for.
func encodeLevel(level zapcore.Level, enc zapcore.PrimitiveArrayEncoder) {
	zapcore.LowercaseLevelEncoder(max(level, zapcore.DebugLevel), enc)
}

// warnings logs what the API server warns of, such as a deprecated version: with every answer, so not for operators.
type warnings struct{}

var _ rest.WarningHandlerWithContext = warnings{}

func (warnings) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	logr.FromContextOrDiscard(ctx).V(1).Info("the API server warns", "warning", text)
}
