import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Prints every error code of the Java client: code, name, whether it is retriable. */
public class ErrorCodes {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            System.out.println(
                error.code() + " " + error.name() + " " + (error.exception() instanceof RetriableException));
        }
    }
}
