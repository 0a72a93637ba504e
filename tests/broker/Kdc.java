
import java.io.File;
import org.apache.kerby.kerberos.kerb.server.KdcConfigKey;
import org.apache.kerby.kerberos.kerb.server.SimpleKdcServer;

/** A Kerberos KDC (Apache Kerby) that ends with its standard input: folder, realm, port, then names of KdcConfigKey with integers. */
public class Kdc {
    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        SimpleKdcServer kdc = new SimpleKdcServer();
        kdc.setWorkDir(folder);
        kdc.setKdcRealm(arguments[1]);
        kdc.setKdcHost("127.0.0.1");
        kdc.setKdcTcpPort(Integer.parseInt(arguments[2]));
        kdc.setAllowUdp(false);
        for (int at = 3; at < arguments.length; at += 2) {
            kdc.getKdcConfig().setInt(KdcConfigKey.valueOf(arguments[at]), Integer.parseInt(arguments[at + 1]));
        }
        kdc.init();
        kdc.start();
        System.out.println("ready");
        System.out.flush();
        // A principal a line: its key goes to the file behind the blank.
        var lines = new java.util.Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ", 2);
            kdc.createPrincipal(words[0]);
            kdc.exportPrincipal(words[0], new File(words[1]));
            System.out.println("created");
            System.out.flush();
        }
        kdc.stop();
    }
}
